/* The privacy ledger of a job: server/ledger.c. One thread at a time. */
#ifndef TN_SERVER_LEDGER_H
#define TN_SERVER_LEDGER_H

#include <stdbool.h>

#include "privacy/privacy.h"

typedef struct ledger ledger;

typedef struct ledger_row { /* one release */
    uint64_t round;
    double q, noise;         /* of the tn_dp_step that it spends; a discrete Gaussian */
    double clip, next_clip;  /* the norm that was used, and the one to use next */
    double epsilon, delta;   /* spent with all rows up to this one */
} ledger_row;

/* path: state.db. make: makes the table if it is missing; else opens for reading only. */
tn_code ledger_open(ledger **out, const char *path, bool make, tn_err *err);
void ledger_close(ledger *l);
tn_code ledger_add(ledger *l, const ledger_row *r, tn_err *err); /* on the disk when it returns */
/* All rows as steps, equal ones together; *out has room for one more; free(*out). */
tn_code ledger_steps(ledger *l, tn_dp_step **out, size_t *n, tn_err *err);
tn_code ledger_last(ledger *l, bool *some, ledger_row *r, tn_err *err);

#endif

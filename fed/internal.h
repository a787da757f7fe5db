/* Shared between the files of fed; other modules include fed/fed.h. */
#ifndef TN_FED_INTERNAL_H
#define TN_FED_INTERNAL_H

#include "fed/fed.h"

#define TNI_ROUNDS_MAX (UINT64_C(1) << 53) /* so that JSON and Python's floats can carry a round too */

/* What tn_id_valid asks for, for messages. */
#define TNI_ID_RULE "1 to 64 letters, digits, '.', '-' and '_', the first a letter or digit"

/* ---- clients.c: what a round knows of each client, found by id ---- */

typedef enum tni_role { TNI_OUTSIDE, TNI_WAITED, TNI_REPORTED, TNI_LEFT } tni_role;
/* Why a client left its cohort. */
typedef enum tni_why { TNI_BROKE, TNI_SAID_BYE, TNI_REFUSED, TNI_TOO_SLOW } tni_why;

typedef struct tni_client {
    char id[TN_ID_MAX + 1];
    bool connected;
    tni_role role; /* in the attempt under way */
    tni_why why;   /* when LEFT */
    uint64_t counted;  /* the last round whose aggregate has its update; 0: none */
    uint64_t refused;  /* the round in which its update was refused: it is not chosen again for that one */
    int64_t resume_by; /* when queued: the moment at which it leaves the cohort */
    bool queued;
    struct tni_client *prev, *next; /* among the queued */
    struct tni_client *next_refused;
} tni_client;

/* An open-addressed table of pointers: a client stays where it is until it is removed. Zero it to begin. */
typedef struct tni_clients {
    tni_client **slot;
    size_t cap, count; /* cap: 0 or a power of two */
} tni_clients;

tni_client *tni_clients_find(const tni_clients *t, const char *id);
tni_client *tni_clients_add(tni_clients *t, const char *id); /* not there yet; NULL: no memory */
void tni_clients_remove(tni_clients *t, tni_client *c);      /* frees it */
void tni_clients_release(tni_clients *t);

/* ---- select.c ---- */

/* Picks k of n (k <= n) without replacement, every subset equally likely: picked[0..k) ascending. The same
 * seed, round and attempt give the same picks. */
void tni_select_uniform(size_t n, size_t k, uint64_t seed, uint64_t round, uint32_t attempt, size_t *picked);

/* ---- size.c ---- */

tn_code tni_round_cfg_check(const tn_round_cfg *c, tn_err *err);
/* With n clients there: how many reports a round aims at, and how many it asks (over-selection). At most n. */
size_t tni_round_target(const tn_round_cfg *cfg, size_t n);
size_t tni_round_cohort_size(const tn_round_cfg *cfg, size_t n);
/* The target of a cohort of that size, where it is not known how many clients were there. */
size_t tni_round_target_of_cohort(const tn_round_cfg *cfg, size_t size);
double tni_seconds(int64_t ns);

/* ---- update.c ---- */

#define TNI_EXAMPLES_MAX (UINT64_C(1) << 40)
tn_code tni_examples_check(const tn_update *u, tn_err *err);
/* bool and float8_e8m0fnu have no sums: an update never changes them. */
bool tni_dtype_is_fixed(tn_dtype d);
/* A run of neighbours of one dtype starting at entry i: how many bytes they fill; *next is the entry behind
 * them. Tensors lie without gaps, so a run is one array. */
size_t tni_layout_run(const tn_layout *l, size_t i, size_t *next);
/* The tensor that byte `at` of the block belongs to, and the index of that element in it. */
const tn_layout_entry *tni_layout_at(const tn_layout *l, size_t at, size_t *index);

/* ---- fedavg.c ---- */

extern const tn_agg_ops tni_agg_fedavg;

#endif

/* The vote of a shrinking group, between vote.c and shrink.c (and link.c, which brings the messages).
 * Everything is called with the group's lock held. */
#ifndef TN_DIST_VOTE_H
#define TN_DIST_VOTE_H

#include "dist/internal.h"

typedef enum tni_vote_state { TNI_VOTE_OPEN, TNI_VOTE_DECIDED, TNI_VOTE_HOPELESS } tni_vote_state;

/* What was decided: new rank i is rank[i] of the old group and listens at url[i]. */
typedef struct tni_verdict {
    int n, cap;
    int *rank;
    char **url;
    uint8_t cookie[TNI_COOKIE_BYTES];
} tni_verdict;
void tni_verdict_release(tni_verdict *v);

tn_code
tni_vote_new(tn_pg *g,
             tn_err *err); /* with the group; ranks that shrink earlier than this one may write already */
void tni_vote_free(tn_pg *g);
/* This rank shrinks: tells all others, and where it will listen. TN_EINVAL the second time. */
tn_code tni_vote_open(tn_pg *g, const char *url, bool minority, tn_err *err);
/* Moves on. patient: ranks that are there and have not called shrink are still waited for. HOPELESS: too many
 * are lost. */
tni_vote_state tni_vote_tick(tn_pg *g, int64_t now, bool patient);
/* Gives up: the others see this rank leave, and go on without it. */
void tni_vote_resign(tn_pg *g);
bool tni_vote_lost(const tn_pg *g, int rank);
bool tni_vote_joined(const tn_pg *g, int rank);
tn_code tni_vote_verdict(const tn_pg *g, tni_verdict *out, tn_err *err); /* after DECIDED */

#endif

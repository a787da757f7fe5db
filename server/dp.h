/* Central differential privacy of the server: server/dp.c. */
#ifndef TN_SERVER_DP_H
#define TN_SERVER_DP_H

#include "server/internal.h"

tn_code dp_parse(dp_settings *s, const tn_srv_cfg *cfg, tn_err *err);
tn_code dp_check(const tn_srv_cfg *cfg, tn_err *err); /* what can be said without starting */
tn_code dp_open(srv *s, tn_err *err);                 /* after state_open */
void dp_close(srv *s);
bool dp_exhausted(srv *s); /* whether one more round would go over the budget; logs it */
/* In place of tn_agg_run. The model may be released when it returns TN_OK: it is paid for. */
tn_code dp_aggregate(srv *s, uint64_t round, const tn_update *u, size_t n, void *into, tn_err *err);

#endif

/* The settings of a round, and how many clients follow from them. */
#include <inttypes.h>
#include <math.h>

#include "fed/internal.h"

double tni_seconds(int64_t ns) { return (double)ns / (double)TN_SECOND; }

/* ---- Ranges ---- */

static tn_code check_numbers(const tn_round_cfg *c, tn_err *err) {
    if (c->rounds == 0 || c->rounds > TNI_ROUNDS_MAX)
        return tn_fail(err, TN_EINVAL, "rounds is %" PRIu64 "; at least 1 is needed", c->rounds);
    if (c->min_clients == 0 || c->min_clients > TN_MAX_CLIENTS)
        return tn_fail(err, TN_EINVAL, "min-clients is %" PRIu32 "; 1 to %d are possible", c->min_clients,
                       TN_MAX_CLIENTS);
    if (c->start_clients < c->min_clients || c->start_clients > TN_MAX_CLIENTS)
        return tn_fail(err, TN_EINVAL, "start-clients is %" PRIu32 "; it must be min-clients (%" PRIu32 ") to %d",
                       c->start_clients, c->min_clients, TN_MAX_CLIENTS);
    if (c->clients_per_round != 0 && c->clients_per_round < c->min_clients)
        return tn_fail(err, TN_EINVAL,
                       "clients-per-round is %" PRIu32 ", less than min-clients (%" PRIu32 "): no round could be "
                       "committed",
                       c->clients_per_round, c->min_clients);
    if (!(c->fraction >= 0 && c->fraction <= 1))
        return tn_fail(err, TN_EINVAL, "fraction is %g; it must be in (0, 1], or 0 for unused", c->fraction);
    if (!(c->over_select >= 1 && isfinite(c->over_select)))
        return tn_fail(err, TN_EINVAL, "over-select is %g; it must be 1 or more", c->over_select);
    return TN_OK;
}

static tn_code check_times(const tn_round_cfg *c, tn_err *err) {
    if (c->deadline_ns <= 0 || c->deadline_ns == TN_FOREVER)
        return tn_fail(err, TN_EINVAL, "deadline is %g s; it must be positive and finite",
                       tni_seconds(c->deadline_ns));
    if (c->resume_ns < 0 || c->resume_ns == TN_FOREVER)
        return tn_fail(err, TN_EINVAL, "resume-window is %g s; it must be finite and not negative",
                       tni_seconds(c->resume_ns));
    if (c->wait_timeout_ns <= 0)
        return tn_fail(err, TN_EINVAL, "wait-timeout is %g s; it must be positive",
                       tni_seconds(c->wait_timeout_ns));
    if (c->notice_ns <= 0)
        return tn_fail(err, TN_EINVAL, "the time between notices is %g s; it must be positive",
                       tni_seconds(c->notice_ns));
    return TN_OK;
}

tn_code tni_round_cfg_check(const tn_round_cfg *c, tn_err *err) {
    tn_code code = check_numbers(c, err);

    return code == TN_OK ? check_times(c, err) : code;
}

/* ---- How many ---- */

/* Upwards, but not for the last bit of a product: 0.07 * 100 is 7, not 8. */
static double ceil_of(double x) { return ceil(x - 1e-9); }

size_t tni_round_target(const tn_round_cfg *cfg, size_t n) {
    size_t b = n;

    if (cfg->fraction > 0) {
        b = (size_t)ceil_of(cfg->fraction * (double)n);
        if (b < cfg->min_clients)
            b = cfg->min_clients;
    }
    if (cfg->clients_per_round != 0 && b > cfg->clients_per_round)
        b = cfg->clients_per_round;
    return b < n ? b : n;
}

/* The cohort that aims at b reports out of n clients. */
static size_t enlarged(const tn_round_cfg *cfg, size_t b, size_t n) {
    double size = ceil_of((double)b * cfg->over_select);

    return size < (double)n ? (size_t)size : n;
}

size_t tni_round_cohort_size(const tn_round_cfg *cfg, size_t n) {
    return enlarged(cfg, tni_round_target(cfg, n), n);
}

/* Over-selection is strictly growing in the target, and the target grows with the clients: if the target for
 * `size` clients alone fills the cohort, that was it. Otherwise all of the enlarged number were there. */
size_t tni_round_target_of_cohort(const tn_round_cfg *cfg, size_t size) {
    size_t b = tni_round_target(cfg, size);

    if (enlarged(cfg, b, SIZE_MAX) < size) {
        b = (size_t)((double)size / cfg->over_select);
        b = b > 1 ? b - 1 : 1;
        while (enlarged(cfg, b, SIZE_MAX) < size)
            b++;
    }
    return b < cfg->min_clients ? cfg->min_clients : b;
}

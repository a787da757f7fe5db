/* What is asked of the accountants: checks, the choice between them, calibration, and the Gaussian mechanism by
 * itself, for which there is a closed form. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "privacy/dp_internal.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* 1.1 to 10.9 by 0.1, 11 to 63, and three far ones */
static const double default_orders[] = {
#define TENTHS(n) n + 0.0, n + 0.1, n + 0.2, n + 0.3, n + 0.4, n + 0.5, n + 0.6, n + 0.7, n + 0.8, n + 0.9
#define TEN(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9
    1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, TENTHS(2), TENTHS(3), TENTHS(4), TENTHS(5), TENTHS(6),
    TENTHS(7), TENTHS(8), TENTHS(9), TENTHS(10), TEN(11), TEN(21), TEN(31), TEN(41), TEN(51), 61, 62, 63,
    128, 256, 512, 1024,
#undef TENTHS
#undef TEN
};

const double *tn_dp_orders(size_t *n) {
    *n = COUNT(default_orders);
    return default_orders;
}

/* ---- Checks ---- */

tn_code tni_dp_check_range(const char *name, double v, double low, bool open, double high, tn_err *err) {
    if ((open ? v > low : v >= low) && v <= high)
        return TN_OK;
    if (open)
        return tn_fail(err, TN_EINVAL, "%s is %g; it must be more than %g and at most %g", name, v, low, high);
    return tn_fail(err, TN_EINVAL, "%s is %g; it must be from %g to %g", name, v, low, high);
}

tn_code tni_dp_check_delta(double delta, tn_err *err) {
    if (delta > 0 && delta < 1)
        return TN_OK;
    return tn_fail(err, TN_EINVAL, "delta is %g; it must be more than 0 and less than 1", delta);
}

static tn_code check_step(tn_dp_accountant how, const tn_dp_step *s, tn_err *err) {
    double low = how == TN_DP_PLD ? TNI_DP_PLD_SIGMA_MIN : TNI_DP_SIGMA_MIN;
    tn_code code;

    if ((code = tni_dp_check_range("q", s->q, 0, true, 1, err)) != TN_OK ||
        (code = tni_dp_check_range("sigma", s->sigma, low, false, TNI_DP_SIGMA_MAX, err)) != TN_OK)
        return code;
    if (s->count > TNI_DP_COUNT_MAX)
        return tn_fail(err, TN_EINVAL, "steps is %llu; at most %llu are accounted for",
                       (unsigned long long)s->count, (unsigned long long)TNI_DP_COUNT_MAX);
    if (how == TN_DP_PLD && s->noise == TN_DP_DISCRETE_GAUSSIAN &&
        (s->sensitivity < 1 || s->sensitivity > 1000000))
        return tn_fail(err, TN_EINVAL,
                       "sensitivity is %u; the discrete Gaussian's is 1 to 1000000 units of its grid",
                       s->sensitivity);
    return TN_OK;
}

static tn_code check(tn_dp_accountant how, const tn_dp_step *step, size_t nsteps, double delta,
                     const double *orders, size_t norders, tn_err *err) {
    uint64_t total = 0;
    tn_code code = tni_dp_check_delta(delta, err);

    for (size_t i = 0; i < nsteps && code == TN_OK; i++) {
        code = check_step(how, &step[i], err);
        total += step[i].count; /* at most 1e9 each */
        if (code == TN_OK && total > TNI_DP_COUNT_MAX)
            code = tn_fail(err, TN_EINVAL, "more than %llu steps in all", (unsigned long long)TNI_DP_COUNT_MAX);
    }
    if (code == TN_OK && how == TN_DP_PLD && orders != NULL)
        code = tn_fail(err, TN_EINVAL, "orders belong to the rdp accountant; pld has none");
    else if (code == TN_OK && orders != NULL)
        code = tni_dp_check_orders(orders, norders, err);
    return code;
}

/* ---- Epsilon ---- */

static tn_code rdp_epsilon(const tn_dp_step *step, size_t nsteps, double delta, const double *orders,
                           size_t norders, tn_dp_spent *out, tn_err *err) {
    double *rdp;

    if (orders == NULL)
        orders = tn_dp_orders(&norders);
    rdp = calloc(norders, sizeof(*rdp));
    if (rdp == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for %zu orders", norders);
    for (size_t i = 0; i < norders; i++) {
        for (size_t k = 0; k < nsteps; k++)
            rdp[i] += (double)step[k].count * tni_dp_rdp_of(&step[k], orders[i]);
    }
    *out = tni_dp_convert(orders, rdp, norders, delta);
    free(rdp);
    return TN_OK;
}

/* The same, checked before. */
static tn_code epsilon_of(tn_dp_accountant how, const tn_dp_step *step, size_t nsteps, double delta,
                          const double *orders, size_t norders, tn_dp_spent *out, tn_err *err) {
    uint64_t total = 0;

    for (size_t i = 0; i < nsteps; i++)
        total += step[i].count;
    *out = (tn_dp_spent){0, 0};
    if (total == 0)
        return TN_OK;
    if (how == TN_DP_RDP)
        return rdp_epsilon(step, nsteps, delta, orders, norders, out, err);
    return tni_dp_pld_epsilon(step, nsteps, delta, &out->epsilon, err);
}

tn_code tn_dp_epsilon(tn_dp_accountant how, const tn_dp_step *step, size_t nsteps, double delta,
                      const double *orders, size_t norders, tn_dp_spent *out, tn_err *err) {
    tn_code code = check(how, step, nsteps, delta, orders, norders, err);

    return code == TN_OK ? epsilon_of(how, step, nsteps, delta, orders, norders, out, err) : code;
}

/* ---- Calibration: epsilon falls as sigma grows ---- */

typedef struct target {
    tn_dp_accountant how;
    tn_dp_step step;
    double epsilon, delta;
    const double *orders;
    size_t norders;
} target;

/* *over: log of epsilon over the target. */
static tn_code excess(target *t, double sigma, double *over, tn_err *err) {
    tn_dp_spent spent;
    tn_code code;

    t->step.sigma = sigma;
    code = epsilon_of(t->how, &t->step, 1, t->delta, t->orders, t->norders, &spent, err);
    if (code == TN_OK)
        *over = log(spent.epsilon / t->epsilon); /* -Inf when nothing is spent */
    return code;
}

typedef struct bracket { /* low is too little noise, high is enough; and what the two spend */
    double low, high, over_low, over_high;
} bracket;

/* Doubles or halves from a guess until the answer lies between. */
static tn_code enclose(target *t, double guess, double least, bracket *b, tn_err *err) {
    double over = 0;
    tn_code code = excess(t, guess, &over, err);

    *b = (bracket){guess, guess, over, over};
    while (code == TN_OK && b->over_high > 0) {
        b->low = b->high;
        b->over_low = b->over_high;
        b->high *= 2;
        if (b->high > TNI_DP_SIGMA_MAX)
            return tn_fail(
                err, TN_EINVAL, "no sigma up to %g keeps %llu steps within epsilon %g at delta %g%s",
                TNI_DP_SIGMA_MAX, (unsigned long long)t->step.count, t->epsilon, t->delta,
                t->how == TN_DP_RDP ? "; larger orders, or the pld accountant, reach smaller epsilons" : "");
        code = excess(t, b->high, &b->over_high, err);
    }
    while (code == TN_OK && b->over_low <= 0 && b->low > least) {
        b->high = b->low;
        b->over_high = b->over_low;
        b->low = fmax(b->low / 2, least);
        code = excess(t, b->low, &b->over_low, err);
    }
    if (code == TN_OK && b->over_low <= 0) /* even the least is enough */
        b->high = b->low;
    return code;
}

/* Epsilon is close to a power of sigma, so interpolate between the logarithms, and lean to the side that moved
 * less, so that both ends arrive. */
static tn_code narrow(target *t, bracket *b, double close, tn_err *err) {
    bool moved_high = false;
    tn_code code = TN_OK;

    for (int i = 0; b->high / b->low > 1 + close && code == TN_OK; i++) {
        double low = log(b->low), width = log(b->high) - low,
               at = width * b->over_low / (b->over_low - b->over_high);
        double over = 0;

        if (i % 4 == 3 || !(at >= 0 && at <= width))
            at = width / 2;
        at += moved_high ? -close / 3 : close / 3;
        at = exp(low + fmin(fmax(at, close / 4), width - close / 4));
        code = excess(t, at, &over, err);
        moved_high = over <= 0;
        if (moved_high) {
            b->high = at;
            b->over_high = over;
        } else {
            b->low = at;
            b->over_low = over;
        }
    }
    return code;
}

tn_code tn_dp_calibrate(tn_dp_accountant how, double epsilon, double q, uint64_t count, double delta,
                        const double *orders, size_t norders, double *sigma, tn_err *err) {
    target t = {how, {TN_DP_GAUSSIAN, q, 1, count, 0}, epsilon, delta, orders, norders};
    double least = how == TN_DP_PLD ? TNI_DP_PLD_SIGMA_MIN : TNI_DP_SIGMA_MIN;
    bracket b = {1, 1, 0, 0};
    tn_code code = check(how, &t.step, 1, delta, orders, norders, err);

    if (code == TN_OK)
        code = tni_dp_check_range("epsilon", epsilon, 0, true, 1e6, err);
    if (code == TN_OK && count == 0)
        code = tn_fail(err, TN_EINVAL, "steps is 0; noise is calibrated for at least one step");
    if (code == TN_OK)
        code = enclose(&t, 1, least, &b, err);
    if (code == TN_OK)
        code = narrow(&t, &b, how == TN_DP_PLD ? 1e-4 : 1e-6, err);
    if (code == TN_OK)
        *sigma = b.high;
    return code;
}

/* ---- The Gaussian mechanism, once, sensitivity 1 ---- */

/* log of the upper tail of the normal distribution beyond x */
static double log_tail(double x) {
    double d = 0;

    if (x < 26)
        return log(erfc(x * M_SQRT1_2) / 2);
    /* Mills' ratio as a continued fraction, where erfc is about to leave the range of a double */
    for (int k = 40; k > 0; k--)
        d = k / (x + d);
    return -x * x / 2 - log((x + d) * sqrt(2 * M_PI));
}

/* Theorem 8 of Balle and Wang: tail(e s - 1/2s) - e^e tail(e s + 1/2s) */
static double delta_of(double sigma, double epsilon) {
    double a = log_tail(epsilon * sigma - 1 / (2 * sigma)),
           b = epsilon + log_tail(epsilon * sigma + 1 / (2 * sigma));

    return b < a ? -exp(a) * expm1(b - a) : 0;
}

tn_code tn_dp_gaussian_sigma(double epsilon, double delta, double *sigma, tn_err *err) {
    double low = 1e-6, high = 1;
    tn_code code = tni_dp_check_range("epsilon", epsilon, 0, true, 1e4, err);

    if (code == TN_OK)
        code = tni_dp_check_delta(delta, err);
    if (code != TN_OK)
        return code;
    while (delta_of(high, epsilon) > delta && high < 1e300)
        high *= 2;
    for (int i = 0; i < 200 && high / low > 1 + 1e-15; i++) {
        double middle = sqrt(low) * sqrt(high);

        if (delta_of(middle, epsilon) > delta)
            low = middle;
        else
            high = middle;
    }
    *sigma = high;
    return TN_OK;
}

tn_code tn_dp_gaussian_epsilon(double sigma, double delta, double *epsilon, tn_err *err) {
    double low = 0, high = 1;
    tn_code code = tni_dp_check_range("sigma", sigma, TNI_DP_SIGMA_MIN, false, TNI_DP_SIGMA_MAX, err);

    if (code == TN_OK)
        code = tni_dp_check_delta(delta, err);
    if (code != TN_OK)
        return code;
    *epsilon = 0;
    if (delta_of(sigma, 0) <= delta)
        return TN_OK;
    while (delta_of(sigma, high) > delta)
        high *= 2;
    for (int i = 0; i < 200 && high - low > 1e-15 * high; i++) {
        double middle = (low + high) / 2;

        if (delta_of(sigma, middle) > delta)
            low = middle;
        else
            high = middle;
    }
    *epsilon = high;
    return TN_OK;
}

/* ---- Noise in shares ---- */

static tn_code check_distributed(const tn_dp_distributed *d, tn_err *err) {
    tn_code code;

    if ((code = tni_dp_check_range("scale", d->scale, 0, true, 0x1p60, err)) != TN_OK ||
        (code = tni_dp_check_range("sigma", d->sigma, 0, true, 1e9, err)) != TN_OK ||
        (code = tni_dp_check_range("clients", (double)d->clients, 1, false, 1e9, err)) != TN_OK ||
        (code = tni_dp_check_range("clip", d->clip, 0, true, 1e9, err)) != TN_OK ||
        (code = tni_dp_check_range("dimension", (double)d->dimension, 1, false, 1e12, err)) != TN_OK)
        return code;
    if (!(d->beta >= 0 && d->beta < 1))
        return tn_fail(err, TN_EINVAL, "beta is %g; it must be from 0 to less than 1", d->beta);
    return TN_OK;
}

/* Kairouz, Liu and Steinke 2021, section 4: each rounding moves a coordinate by less than 1; a bound that
 * all but beta of the roundings keep is much smaller. */
tn_code tn_dp_rounded_bounds(const tn_dp_distributed *d, tn_dp_bounds *out, tn_err *err) {
    double c = d->scale * d->clip, dim = (double)d->dimension, root = sqrt(dim);
    tn_code code = check_distributed(d, err);

    if (code != TN_OK)
        return code;
    out->l2 = c + root;
    if (d->beta > 0)
        out->l2 = fmin(out->l2, sqrt(c * c + dim / 4 + sqrt(-2 * log(d->beta)) * (c + root / 2)));
    out->l1 = out->l2 * fmin(root, out->l2); /* |k| <= k^2 for integers */
    return TN_OK;
}

/* Agarwal, Kairouz and Liu 2021, corollary 3.1, mu the variance of the sum on the grid */
static double skellam_rdp(const tn_dp_bounds *b, double mu, double order) {
    double l2 = b->l2 * b->l2, low = ((2 * order - 1) * l2 + 6 * b->l1) / (4 * mu * mu);

    return order * l2 / (2 * mu) + fmin(low, 3 * b->l1 / (2 * mu));
}

/* How far a sum of n discrete Gaussians is from one, in the logarithm of a probability. */
static double sum_gap(double variance, uint64_t n) {
    double sum = 0;

    for (uint64_t k = 1; k < n; k++) {
        double term = exp(-2 * M_PI * M_PI * variance * (double)k / (double)(k + 1));

        /* the terms fall: where they stay the same, all that follow are as large at most */
        if (term < 1e-300 || k == 1000000)
            return 10 * (sum + (double)(n - k) * term);
        sum += term;
    }
    return 10 * sum;
}

/* Kairouz, Liu and Steinke 2021, proposition 14 */
static double shared_gaussian_rdp(const tn_dp_bounds *b, double mu, double dim, double tau, double order) {
    double l1 = b->l1 / sqrt(mu), l2 = b->l2 / sqrt(mu), far = l2 + sqrt(dim) * tau;
    double near = fmin(order / 2 * l2 * l2 + tau * dim, order / 2 * (l2 * l2 + 2 * l1 * tau + tau * tau * dim));

    return fmin(near, order / 2 * far * far);
}

tn_code tn_dp_distributed_epsilon(const tn_dp_distributed *d, uint64_t count, double delta,
                                  const double *orders, size_t norders, tn_dp_spent *out, tn_err *err) {
    double integers[128], *rdp, share, tau;
    tn_dp_bounds b;
    tn_code code = tn_dp_rounded_bounds(d, &b, err);

    if (code == TN_OK)
        code = tni_dp_check_delta(delta, err);
    if (code == TN_OK)
        code = tni_dp_check_range("steps", (double)count, 0, false, (double)TNI_DP_COUNT_MAX, err);
    if (code == TN_OK && orders != NULL)
        code = tni_dp_check_orders(orders, norders, err);
    for (size_t i = 0; code == TN_OK && orders != NULL && i < norders; i++) {
        if (d->noise == TN_DP_SKELLAM && orders[i] != floor(orders[i]))
            code = tn_fail(err, TN_EINVAL,
                           "orders[%zu] is %g; the Skellam mechanism is accounted for at integer orders", i,
                           orders[i]);
    }
    if (code != TN_OK)
        return code;
    *out = (tn_dp_spent){0, 0};
    if (count == 0)
        return TN_OK;
    if (orders == NULL) {
        for (norders = 0; norders < 127; norders++)
            integers[norders] = (double)norders + 2;
        integers[norders++] = 256;
        orders = integers;
    }
    rdp = malloc(norders * sizeof(*rdp));
    if (rdp == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for %zu orders", norders);
    share = d->scale * d->sigma * d->scale * d->sigma;
    tau = d->noise == TN_DP_SHARED_DISCRETE_GAUSSIAN ? sum_gap(share, d->clients) : 0;
    for (size_t i = 0; i < norders; i++) {
        double mu = (double)d->clients * share;

        rdp[i] = d->noise == TN_DP_SKELLAM ? skellam_rdp(&b, mu, orders[i])
                                           : shared_gaussian_rdp(&b, mu, (double)d->dimension, tau, orders[i]);
        rdp[i] *= (double)count;
    }
    *out = tni_dp_convert(orders, rdp, norders, delta);
    free(rdp);
    return TN_OK;
}

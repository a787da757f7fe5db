/* Renyi divergences of one step, as a function of the order.
 *
 * For the Poisson-sampled Gaussian the divergence is log(A) / (order - 1) with
 *
 *     A = E over z ~ N(0, sigma^2) of (1 - q + q e^w)^order,   w = (2 z - 1) / (2 sigma^2),
 *
 * and removal is the larger of the two directions (Mironov, Talwar and Zhang 2019, theorem 5; its only
 * premise, a reflection that swaps the two distributions, holds for the discrete Gaussian as well). A - 1 is
 * what is computed, because for small q it is all that there is:
 *
 *   integer orders  the binomial sum; its terms 0 and 1 cancel against the 1 exactly, the others are positive
 *   other orders    the integral of (1 + v)^order - 1 - order v with v = q (e^w - 1), which is never
 *                   negative, by the trapezoidal rule: the integrand is analytic and falls off like a
 *                   Gaussian, so the rule converges exponentially. Both in logarithms. */
#include <math.h>

#include "privacy/dp_internal.h"

#define SQRT_2PI 2.50662827463100050242
#define REACH 13.0 /* standard deviations beyond which a Gaussian's share is below 1e-36 */

/* log(e^a + e^b) */
static double log_add(double a, double b) {
    double high = a > b ? a : b, low = a > b ? b : a;

    return high == -HUGE_VAL ? high : high + log1p(exp(low - high));
}

/* log(e^a - 1) for a > 0 */
static double log_expm1(double a) { return a > 30 ? a + log1p(-exp(-a)) : log(expm1(a)); }

/* log(1 + e^a) */
static double log1p_exp(double a) { return a > 0 ? a + log1p(exp(-a)) : log1p(exp(a)); }

static double log_gamma(double x) {
    int sign;

    return lgamma_r(x, &sign);
}

static double log_excess_integer(double q, double sigma, double order) {
    double sum = -HUGE_VAL, top = log_gamma(order + 1);

    for (uint32_t i = 2; i <= (uint32_t)order; i++) {
        double j = (double)i, ways = top - log_gamma(j + 1) - log_gamma(order - j + 1);
        double rest = order - j > 0 ? (order - j) * log1p(-q) : 0;

        sum = log_add(sum, ways + rest + j * log(q) + log_expm1(j * (j - 1) / (2 * sigma * sigma)));
    }
    return sum;
}

/* log((1 + v)^order - 1 - order v) */
static double log_remainder(double q, double order, double w) {
    double v = q * expm1(w), t;

    if (fabs(v) * order < 1e-4) /* the first terms of the binomial series */
        return log(order * (order - 1) / 2 * v * v) + log1p((order - 2) / 3 * v * (1 + (order - 3) / 4 * v));
    t = order * log_add(log1p(-q), log(q) + w);
    if (t < 30)
        return log(expm1(t) - order * v);
    return t + log1p(-(1 - order * q) * exp(-t) - exp(log(order * q) + w - t));
}

static double log_excess_fractional(double q, double sigma, double order) {
    double var = sigma * sigma, step = fmin(sigma / 8, var / 2), sum = -HUGE_VAL;
    uint64_t points = (uint64_t)ceil((order + 2 * REACH * sigma) / step);

    for (uint64_t i = 0; i <= points; i++) {
        double z = (double)i * step - REACH * sigma;

        sum = log_add(sum, log_remainder(q, order, (2 * z - 1) / (2 * var)) - z * z / (2 * var));
    }
    return sum + log(step / (sigma * SQRT_2PI));
}

double tni_dp_rdp_of(const tn_dp_step *s, double order) {
    if (s->q >= 1)
        return order / (2 * s->sigma * s->sigma);
    /* its moments are bounded at integer orders, and divergences grow with the order */
    if (s->noise == TN_DP_DISCRETE_GAUSSIAN)
        order = ceil(order);
    if (order == floor(order))
        return log1p_exp(log_excess_integer(s->q, s->sigma, order)) / (order - 1);
    return log1p_exp(log_excess_fractional(s->q, s->sigma, order)) / (order - 1);
}

/* ---- Orders ---- */

tn_code tni_dp_check_orders(const double *orders, size_t n, tn_err *err) {
    if (n == 0 || n > 10000)
        return tn_fail(err, TN_EINVAL, "%zu orders; 1 to 10000 are needed", n);
    for (size_t i = 0; i < n; i++) {
        if (!(orders[i] > 1 && orders[i] <= 1e5))
            return tn_fail(err, TN_EINVAL, "orders[%zu] is %g; an order is more than 1 and at most 100000", i,
                           orders[i]);
    }
    return TN_OK;
}

/* Proposition 12 of Canonne, Kamath and Steinke 2020. Where the divergence is so small that the total
 * variation distance is below delta (Bretagnolle and Huber: at most sqrt(1 - e^-KL), and no Renyi divergence
 * of order above 1 is below KL), epsilon is 0. */
tn_dp_spent tni_dp_convert(const double *orders, const double *rdp, size_t n, double delta) {
    tn_dp_spent best = {HUGE_VAL, 0};

    for (size_t i = 0; i < n; i++) {
        double a = orders[i], epsilon;

        epsilon = delta * delta + expm1(-rdp[i]) > 0 ? 0 : rdp[i] + log1p(-1 / a) - log(delta * a) / (a - 1);
        epsilon = fmax(epsilon, 0);
        if (epsilon < best.epsilon)
            best = (tn_dp_spent){epsilon, a};
    }
    return best;
}

tn_code tn_dp_rdp(const tn_dp_step *step, double order, double *rdp, tn_err *err) {
    tn_code code = tni_dp_check_orders(&order, 1, err);

    if (code == TN_OK)
        code = tni_dp_check_range("q", step->q, 0, true, 1, err);
    if (code == TN_OK)
        code = tni_dp_check_range("sigma", step->sigma, TNI_DP_SIGMA_MIN, false, TNI_DP_SIGMA_MAX, err);
    if (code == TN_OK)
        *rdp = tni_dp_rdp_of(step, order) * (double)step->count;
    return code;
}

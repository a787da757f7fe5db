/* The distribution of the privacy loss of many steps.
 *
 * One step. With P and Q the outputs' distributions on two neighbouring data sets, the loss is L = log(P/Q)
 * under P. It is put on a grid of width h so that every cell [e, e + h] keeps its probability under P and
 * under Q: of the cell's P-mass m and Q-mass m', the share a = (m' exp(e + h) - m) / (exp(h) - 1) goes to
 * the lower end and the rest to the upper one. The result is never more private than the truth, and the
 * closest such ("Connect the dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022: their piecewise
 * linear delta, cell by cell, which loses no digits to differences). What is above the grid counts as
 * infinite loss, what is below as its lowest point.
 *
 * All steps. Losses add, so their distributions are convolved, by FFT. An FFT's rounding errors are as large
 * everywhere as at the peak, which would bury a delta of 1e-12, so the distribution is first tilted:
 * multiplied by exp(lambda x), with the lambda of the Chernoff bound for this delta. The tilted sum has its
 * peak where epsilon is sought. Its window is chosen so that all but e^-44 of it lies inside; what may lie
 * above counts as infinite.
 *
 * Removal (P with the participant, Q without) and addition are composed apart; the larger epsilon counts. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "privacy/dp_internal.h"

#define MAX_POINTS ((size_t)1 << 21)
#define OUTSIDE 44.0 /* -log of the tilted probability outside the window */
#define LAMBDA_LOSS 500.0

typedef enum direction { REMOVE, ADD } direction;

typedef struct pmf { /* p[i] is the probability of the loss (first + i) h; once it is whole, its logarithm */
    double *p;
    int64_t first;
    size_t n;
    double inf;
} pmf;

typedef struct sum { /* the composition under way */
    const tn_dp_step *step;
    size_t nsteps;
    double h, delta,
        reach; /* reach: in standard deviations, beyond which a step's noise counts as infinite loss */
    pmf *pmf;  /* a step each */
    double lambda;
} sum;

/* ---- One step ---- */

/* The normal distribution's mass in [a, b] */
static double normal(double a, double b) {
    if (a > 0)
        return (erfc(a * M_SQRT1_2) - erfc(b * M_SQRT1_2)) / 2;
    if (b < 0)
        return (erfc(-b * M_SQRT1_2) - erfc(-a * M_SQRT1_2)) / 2;
    return (erf(b * M_SQRT1_2) - erf(a * M_SQRT1_2)) / 2;
}

/* The mass of (1 - q) N(0, sigma^2) + q N(1, sigma^2) in [a, b] */
static double mixture(const tn_dp_step *s, double a, double b) {
    double in = s->q * normal((a - 1) / s->sigma, (b - 1) / s->sigma);

    return s->q < 1 ? (1 - s->q) * normal(a / s->sigma, b / s->sigma) + in : in;
}

/* log of the mixture over N(0, sigma^2) at x */
static double log_ratio(const tn_dp_step *s, double x) {
    double w = (2 * x - 1) / (2 * s->sigma * s->sigma);

    return s->q < 1 ? log1p(s->q * expm1(w)) : w;
}

/* Its inverse: the x with log_ratio(x) = loss; -Inf below log(1 - q). */
static double ratio_at(const tn_dp_step *s, double loss) {
    double w = s->q < 1 ? (expm1(loss) + s->q) / s->q : 0;

    if (s->q >= 1)
        return s->sigma * s->sigma * loss + 0.5;
    return w > 0 ? s->sigma * s->sigma * log(w) + 0.5 : -HUGE_VAL;
}

static tn_code grid_new(pmf *m, double low, double high, double h, tn_err *err) {
    m->first = (int64_t)floor(low / h);
    m->n = (size_t)((int64_t)ceil(high / h) - m->first) + 1;
    m->p = calloc(m->n + 1, sizeof(*m->p));
    if (m->p == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for %zu points of a privacy loss", m->n);
    return TN_OK;
}

/* `down` of the cell's mass goes to its lower end. */
static void put(pmf *m, size_t cell, double mass, double down) {
    down = fmin(fmax(down, 0), mass);
    m->p[cell] += down;
    m->p[cell + 1] += mass - down;
}

static tn_code gaussian(const sum *c, const tn_dp_step *s, direction way, pmf *m, tn_err *err) {
    double far = c->reach * s->sigma, low, high;
    tn_code code;

    if (way == REMOVE) {
        low = log_ratio(s, -far);
        high = log_ratio(s, 1 + far);
    } else {
        low = -log_ratio(s, far);
        high = -log_ratio(s, -far);
    }
    if ((code = grid_new(m, low, high, c->h, err)) != TN_OK)
        return code;
    for (size_t i = 0; i + 1 < m->n; i++) {
        double e = (double)(m->first + (int64_t)i) * c->h, a, b, p, q;

        if (way == REMOVE) {
            a = ratio_at(s, e);
            b = ratio_at(s, e + c->h);
            p = mixture(s, a, b);
            q = normal(a / s->sigma, b / s->sigma);
        } else { /* the loss falls as x grows */
            a = ratio_at(s, -(e + c->h));
            b = ratio_at(s, -e);
            p = normal(a / s->sigma, b / s->sigma);
            q = mixture(s, a, b);
        }
        put(m, i, p, (q * exp(e + c->h) - p) / expm1(c->h));
    }
    low = (double)m->first * c->h;
    high = (double)(m->first + (int64_t)m->n - 1) * c->h;
    if (way == REMOVE) {
        m->p[0] += mixture(s, -HUGE_VAL, ratio_at(s, low));
        m->inf = mixture(s, ratio_at(s, high), HUGE_VAL);
    } else {
        m->p[0] += normal(ratio_at(s, -low) / s->sigma, HUGE_VAL);
        m->inf = normal(-HUGE_VAL, ratio_at(s, -high) / s->sigma);
    }
    return TN_OK;
}

/* Atoms at the integers: those of Q weigh exp(-k^2 / 2 sigma^2), those of P are the same, moved by the
 * sensitivity with probability q. */
static tn_code discrete(const sum *c, const tn_dp_step *s, direction way, pmf *m, tn_err *err) {
    double shift = (double)s->sensitivity, sigma = s->sigma * shift, var = 2 * sigma * sigma;
    double far = ceil(c->reach * sigma), total = 0, low, high;
    const int64_t last = (int64_t)far; /* losses depend on k / sensitivity alone */
    tn_code code;

    low = log_ratio(s, -far / shift);
    high = log_ratio(s, 1 + far / shift);
    if ((code = grid_new(m, way == REMOVE ? low : -high, way == REMOVE ? high : -low, c->h, err)) != TN_OK)
        return code;
    for (int64_t i = -last; i <= last; i++)
        total += exp(-(double)i * (double)i / var);
    for (int64_t i = -last; i <= last + (int64_t)s->sensitivity; i++) {
        double k = (double)i, out = exp(-k * k / var) / total,
               in = exp(-(k - shift) * (k - shift) / var) / total;
        double loss = log_ratio(s, k / shift), mass = out, e;
        size_t cell;

        if (way == REMOVE)
            mass = (1 - s->q) * out + s->q * in;
        else
            loss = -loss;
        cell = (size_t)fmax(floor(loss / c->h) - (double)m->first, 0);
        if (cell + 1 >= m->n)
            cell = m->n - 2;
        e = (double)(m->first + (int64_t)cell) * c->h;
        put(m, cell, mass, mass * expm1(e + c->h - loss) / expm1(c->h));
    }
    m->inf = erfc(c->reach * M_SQRT1_2); /* what lies beyond `far` on either side: less than a Gaussian's */
    return TN_OK;
}

/* ---- The tilt ---- */

/* log E exp(lambda L) over the finite losses, its first and its second derivative */
static void cumulant(const sum *c, const pmf *m, double lambda, double out[3]) {
    double top = -HUGE_VAL, s0 = 0, s1 = 0, s2 = 0;

    for (size_t i = 0; i < m->n; i++)
        top = fmax(top, m->p[i] + lambda * (double)(m->first + (int64_t)i) * c->h);
    for (size_t i = 0; i < m->n; i++) {
        double x = (double)(m->first + (int64_t)i) * c->h, w = m->p[i] + lambda * x - top;

        if (w < -100)
            continue;
        w = exp(w);
        s0 += w;
        s1 += w * x;
        s2 += w * x * x;
    }
    out[0] = top + log(s0);
    out[1] = s1 / s0;
    out[2] = fmax(s2 / s0 - out[1] * out[1], 0);
}

static void cumulants(const sum *c, double lambda, double out[3]) {
    out[0] = out[1] = out[2] = 0;
    for (size_t k = 0; k < c->nsteps; k++) {
        double one[3];

        cumulant(c, &c->pmf[k], lambda, one);
        for (int i = 0; i < 3; i++)
            out[i] += (double)c->step[k].count * one[i];
    }
}

/* The lambda at which the Chernoff bound for delta is best: lambda K' - K = log(1/delta), which grows with
 * it. */
static double find_lambda(const sum *c) {
    double low = 0, high, lambda, k[3], most = 0;

    for (size_t i = 0; i < c->nsteps; i++)
        most = fmax(most, (double)(c->pmf[i].first + (int64_t)c->pmf[i].n) * c->h);
    high = LAMBDA_LOSS / most; /* so that no single step's tilt leaves the range of a double */
    lambda = fmin(high, 10);
    for (int i = 0; i < 40 && high - low > 1e-3 * high; i++) {
        double over, next;

        cumulants(c, lambda, k);
        over = lambda * k[1] - k[0] + log(c->delta);
        if (over > 0)
            high = lambda;
        else
            low = lambda;
        next = lambda - over / fmax(lambda * k[2], 1e-300); /* Newton's step, when it stays between */
        if (fabs(next - lambda) < 1e-3 * lambda)
            return lambda;
        lambda = next > low && next < high ? next : (low + high) / 2;
    }
    return lambda;
}

/* Where the tilted sum lies but for e^-OUTSIDE on either side, in multiples of h; by Chernoff's bound again. */
static void find_window(const sum *c, const double k[3], double edge[2]) {
    double least = 0, most = 0, spread = sqrt(fmax(k[2], c->h * c->h));

    for (size_t i = 0; i < c->nsteps; i++) {
        const pmf *m = &c->pmf[i];
        double count = (double)c->step[i].count;

        least += count * (double)m->first * c->h;
        most += count * (double)(m->first + (int64_t)m->n - 1) * c->h;
    }
    edge[0] = least;
    edge[1] = most;
    for (int i = 0; i < 5; i++) { /* Gauss's best, and shares of it, for heavier tails */
        double t = ldexp(sqrt(2 * OUTSIDE) / spread, -i), moved[3];

        cumulants(c, c->lambda + t, moved);
        edge[1] = fmin(edge[1], (moved[0] - k[0] + OUTSIDE) / t);
        cumulants(c, c->lambda - t, moved);
        edge[0] = fmax(edge[0], -(moved[0] - k[0] + OUTSIDE) / t);
    }
}

/* ---- All steps ---- */

static void multiply(double *a, const double *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double re = a[2 * i] * b[2 * i] - a[2 * i + 1] * b[2 * i + 1];

        a[2 * i + 1] = a[2 * i] * b[2 * i + 1] + a[2 * i + 1] * b[2 * i];
        a[2 * i] = re;
    }
}

static size_t wrap(int64_t at, size_t n) {
    int64_t r = at % (int64_t)n;

    return (size_t)(r < 0 ? r + (int64_t)n : r);
}

/* all *= the transform of the tilted pmf, to the power of count */
static void fold(const sum *c, const tni_fft *f, size_t n, const pmf *m, uint64_t count, double *all,
                 double *one) {
    double k[3];

    cumulant(c, m, c->lambda, k);
    for (size_t i = 0; i < 2 * n; i++)
        one[i] = 0;
    for (size_t i = 0; i < m->n; i++) {
        int64_t at = m->first + (int64_t)i;

        one[2 * wrap(at, n)] += exp(m->p[i] + c->lambda * (double)at * c->h - k[0]);
    }
    tni_fft_forward(f, one);
    for (; count != 0; count >>= 1) {
        if (count & 1)
            multiply(all, one, n);
        if (count > 1)
            multiply(one, one, n);
    }
}

/* From the top down: delta at a point is inf + above - ahead, with `above` the probability above it and
 * `ahead` the same weighed by exp(point - loss). Epsilon lies in the cell in which that crosses delta. */
static tn_code scan(const sum *c, const double *all, size_t n, int64_t bottom, double log_mass, double inf,
                    double *epsilon, tn_err *err) {
    double above = 0, ahead = 0, shrink = exp(-c->h);

    if (inf >= c->delta)
        return tn_fail(err, TN_EINTERNAL,
                       "%g of the privacy loss lies beyond the grid, which is not below delta %g", inf,
                       c->delta);
    for (int64_t i = bottom + (int64_t)n - 1; i >= bottom; i--) {
        double x = (double)i * c->h, p = fmax(all[2 * wrap(i, n)], 0) * exp(log_mass - c->lambda * x);

        if (inf + above - ahead > c->delta) { /* at x, so it is above that */
            *epsilon = fmax(x + log((inf + above - c->delta) / ahead), 0);
            return TN_OK;
        }
        above += p;
        ahead = ahead * shrink + p * shrink;
        if (x < 0)
            break;
    }
    *epsilon = 0;
    return TN_OK;
}

static tn_code compose(sum *c, double *epsilon, bool *refine, tn_err *err) {
    double k[3], edge[2], inf = 0, *all = NULL, *one = NULL;
    int64_t bottom;
    size_t n = 2;
    tni_fft f = {0, NULL};
    tn_code code = TN_OK;

    c->lambda = find_lambda(c);
    cumulants(c, c->lambda, k);
    find_window(c, k, edge);
    *refine = (edge[1] - edge[0]) / c->h + 4 > (double)MAX_POINTS;
    if (*refine) {
        c->h = (edge[1] - edge[0]) / ((double)MAX_POINTS * 0.9);
        return TN_OK;
    }
    bottom = (int64_t)floor(edge[0] / c->h) - 1;
    while (n < (size_t)((int64_t)ceil(edge[1] / c->h) + 2 - bottom))
        n *= 2;
    code = tni_fft_init(&f, n, err);
    all = malloc(2 * n * sizeof(*all));
    one = malloc(2 * n * sizeof(*one));
    if (code == TN_OK && (all == NULL || one == NULL))
        code = tn_fail(err, TN_ENOMEM, "no memory for %zu points of a privacy loss", n);
    if (code != TN_OK || all == NULL || one == NULL)
        goto out;
    for (size_t i = 0; i < n; i++) {
        all[2 * i] = 1;
        all[2 * i + 1] = 0;
    }
    for (size_t i = 0; i < c->nsteps; i++) {
        fold(c, &f, n, &c->pmf[i], c->step[i].count, all, one);
        inf += (double)c->step[i].count * c->pmf[i].inf;
    }
    tni_fft_inverse(&f, all);
    inf += exp(k[0] - c->lambda * edge[1] - OUTSIDE);
    code = scan(c, all, n, bottom, k[0], inf, epsilon, err);
out:
    free(all);
    free(one);
    tni_fft_release(&f);
    return code;
}

static void release(sum *c) {
    for (size_t i = 0; i < c->nsteps; i++) {
        free(c->pmf[i].p);
        c->pmf[i].p = NULL;
    }
}

static tn_code one_way(sum *c, direction way, double *epsilon, tn_err *err) {
    bool refine = true;
    tn_code code = TN_OK;

    for (int tries = 0; refine && code == TN_OK && tries < 4; tries++) {
        for (size_t i = 0; i < c->nsteps && code == TN_OK; i++) {
            const tn_dp_step *s = &c->step[i];

            code = s->noise == TN_DP_GAUSSIAN ? gaussian(c, s, way, &c->pmf[i], err)
                                              : discrete(c, s, way, &c->pmf[i], err);
            for (size_t j = 0; code == TN_OK && j < c->pmf[i].n; j++)
                c->pmf[i].p[j] = log(c->pmf[i].p[j]);
        }
        if (code == TN_OK)
            code = compose(c, epsilon, &refine, err);
        release(c);
    }
    if (code == TN_OK && refine)
        code = tn_fail(err, TN_EINTERNAL, "the privacy loss does not fit its grid");
    return code;
}

/* A grid so fine that rounding the loss of all steps to it moves epsilon by less than 1e-4, and that one
 * step's loss has a shape on it, as long as that stays within memory. */
static double choose_width(const sum *c, double total) {
    double h = 0.015 / sqrt(total), widest = 0;

    for (size_t i = 0; i < c->nsteps; i++) {
        const tn_dp_step *s = &c->step[i];
        double far = c->reach * s->sigma;

        widest = fmax(widest, log_ratio(s, 1 + far) - log_ratio(s, -far));
    }
    return fmax(fmin(h, widest / 5000), widest / ((double)MAX_POINTS * 0.9));
}

tn_code tni_dp_pld_epsilon(const tn_dp_step *step, size_t nsteps, double delta, double *epsilon, tn_err *err) {
    sum c = {.step = step, .nsteps = nsteps, .delta = delta, .reach = 1};
    bool symmetric = true;
    double total = 0, other = 0, width;
    tn_code code;

    for (size_t i = 0; i < nsteps; i++) {
        total += (double)step[i].count;
        symmetric = symmetric && step[i].q >= 1;
    }
    assert(total > 0);
    while (erfc(c.reach * M_SQRT1_2) / 2 > delta * 1e-7 / total && c.reach < 37)
        c.reach += 0.25;
    c.pmf = calloc(nsteps + 1, sizeof(*c.pmf));
    if (c.pmf == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for %zu steps", nsteps);
    c.h = width = choose_width(&c, total);
    code = one_way(&c, REMOVE, epsilon, err);
    c.h = width;
    if (code == TN_OK && !symmetric)
        code = one_way(&c, ADD, &other, err);
    *epsilon = fmax(*epsilon, other);
    free(c.pmf);
    return code;
}

/* Updates under differential privacy: clipped, on a grid, summed as integers, with discrete noise.
 *
 * Why the bound holds: an update longer than clip is scaled by clip / norm (1 - 2^-30), which is more than
 * what the norm, summed in float64, can be off; its coordinates over the step are rounded to the nearest
 * integer, which moves each by 1/2 at most, so the integers' norm is at most clip / step + sqrt(dimension) /
 * 2. Everything from there to the sum with its noise is exact, and what is done with the sum does not
 * matter. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "privacy/dp_internal.h"

#define SIGMA 0x1p23             /* grid points of noise */
#define PIECE ((size_t)64 << 10) /* numbers that are summed while they are in the cache */

static bool is_protected(tn_dtype d) { return !tn_dtype_is_integer(d) && d != TN_F8_E8M0; }

/* Numbers of a tensor, and the bytes of each. */
static size_t number_size(tn_dtype d) { return tn_dtype_size(d) / (tn_dtype_is_complex(d) ? 2 : 1); }
static size_t numbers(const tn_layout_entry *e) { return e->nbytes / number_size(e->dtype); }

size_t tni_dp_numbers(const tn_layout_entry *e) { return is_protected(e->dtype) ? numbers(e) : 0; }

tn_code tn_dp_grid_init(tn_dp_grid *g, const tn_layout *l, double clip, double noise, tn_err *err) {
    double slack, steps;
    tn_code code;

    memset(g, 0, sizeof(*g));
    if ((code = tni_dp_check_range("clip", clip, 0, true, 1e30, err)) != TN_OK ||
        (code = tni_dp_check_range("noise", noise, TNI_DP_SIGMA_MIN, false, 1e4, err)) != TN_OK)
        return code;
    for (size_t i = 0; i < l->count; i++) {
        if (is_protected(l->entry[i].dtype))
            g->dimension += numbers(&l->entry[i]);
    }
    if (g->dimension == 0)
        return tn_fail(err, TN_EINVAL, "the model has no floating-point tensor that noise could protect");
    slack = sqrt((double)g->dimension) / 2;
    steps = SIGMA / noise - slack; /* of the clip */
    if (steps < 16 * slack)
        return tn_fail(err, TN_EINVAL, "noise is %g; a model of %llu numbers can have %.3g at most", noise,
                       (unsigned long long)g->dimension, SIGMA / (17 * slack));
    g->clip = clip;
    g->step = clip / steps;
    g->bound = (steps + slack) * (1 + 1e-12); /* of float64's roundings just now */
    g->sigma = noise * g->bound;
    return TN_OK;
}

double tn_dp_norm(const tn_layout *l, const void *block) {
    double sum = 0;

    for (size_t i = 0; i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];

        if (is_protected(e->dtype))
            sum +=
                tn_k_sumsq(e->dtype, (const uint8_t *)block + e->offset, e->nbytes / tn_dtype_size(e->dtype));
    }
    return sqrt(sum);
}

/* What an update of that norm is multiplied by to get onto the grid. */
static double factor_for(const tn_dp_grid *g, double norm) {
    return (norm > g->clip ? g->clip / norm * (1 - 0x1p-30) : 1) / g->step;
}

void tn_dp_to_grid(const tn_dp_grid *g, const tn_layout *l, const void *block, int64_t *out, bool *within) {
    double norm = tn_dp_norm(l, block), factor = factor_for(g, norm);

    for (size_t i = 0; i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];

        if (!is_protected(e->dtype))
            continue;
        tn_k_to_fixed(e->dtype, out, (const uint8_t *)block + e->offset, factor, numbers(e));
        out += numbers(e);
    }
    if (within != NULL)
        *within = norm <= g->clip;
}

void tn_dp_from_grid(const tn_layout *l, const int64_t *in, double factor, void *delta) {
    for (size_t i = 0; i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];
        uint8_t *p = (uint8_t *)delta + e->offset;

        if (!is_protected(e->dtype)) {
            memset(p, 0, e->nbytes);
            continue;
        }
        tn_k_from_fixed(e->dtype, p, in, factor, numbers(e));
        in += numbers(e);
    }
}

tn_code tn_dp_grid_noise(const tn_dp_grid *g, double share, const tn_dp_random *source, tn_dp_sampler **out,
                         tn_err *err) {
    tn_code code = tni_dp_check_range("share", share, 0, true, 1, err);

    *out = NULL;
    return code == TN_OK
               ? tn_dp_sampler_new(out, TN_DP_SAMPLE_GAUSSIAN, share * g->sigma * g->sigma, source, err)
               : code;
}

/* ---- Central ---- */

typedef struct job {
    const tn_dp_grid *g;
    const void *const *update;
    double *factor; /* n */
    size_t n;
    tn_dp_sampler *noise;
    int64_t *sum, *term; /* PIECE */
} job;

static void mean_of_piece(const job *j, tn_dtype dtype, size_t at, size_t n, double scale, uint8_t *mean) {
    tn_dp_sample(j->noise, j->sum, n);
    for (size_t k = 0; k < j->n; k++) {
        tn_k_to_fixed(dtype, j->term, (const uint8_t *)j->update[k] + at, j->factor[k], n);
        tn_k_add(TN_I64, j->sum, j->sum, j->term, n);
    }
    tn_k_from_fixed(dtype, mean + at, j->sum, scale, n);
}

static void mean_of(const job *j, const tn_layout *l, double scale, uint8_t *mean) {
    for (size_t i = 0; i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];

        if (!is_protected(e->dtype)) {
            memset(mean + e->offset, 0, e->nbytes);
            continue;
        }
        for (size_t done = 0, all = numbers(e); done < all; done += PIECE)
            mean_of_piece(j, e->dtype, e->offset + done * number_size(e->dtype),
                          all - done < PIECE ? all - done : PIECE, scale, mean);
    }
}

tn_code tn_dp_mean(const tn_dp_grid *g, const tn_layout *l, const void *const *update, size_t n,
                   double denominator, const tn_dp_random *source, void *mean, uint64_t *within, tn_err *err) {
    job j = {.g = g, .update = update, .n = n};
    tn_code code = tni_dp_check_range("denominator", denominator, 0, true, 1e9, err);

    if (code == TN_OK)
        code = tn_dp_grid_noise(g, 1, source, &j.noise, err);
    if (code != TN_OK)
        return code;
    j.factor = calloc(n + 1, sizeof(*j.factor));
    j.sum = malloc(PIECE * sizeof(*j.sum));
    j.term = malloc(PIECE * sizeof(*j.term));
    if (j.factor == NULL || j.sum == NULL || j.term == NULL) {
        code = tn_fail(err, TN_ENOMEM, "no memory for a sum of %zu updates", n);
        goto out;
    }
    *within = 0;
    for (size_t k = 0; k < n; k++) {
        double norm = tn_dp_norm(l, update[k]);

        j.factor[k] = factor_for(g, norm);
        *within += norm <= g->clip;
    }
    mean_of(&j, l, g->step / denominator, mean);
out:
    free(j.term);
    free(j.sum);
    free(j.factor);
    tn_dp_sampler_free(j.noise);
    return code;
}

/* ---- Adaptive clipping ---- */

static tn_code check_adaptive(const tn_dp_adaptive *a, tn_err *err) {
    tn_code code = TN_OK;

    if (!(a->quantile > 0 && a->quantile < 1))
        return tn_fail(err, TN_EINVAL, "quantile is %g; it must be more than 0 and less than 1", a->quantile);
    if ((code = tni_dp_check_range("rate", a->rate, 0, true, 1, err)) == TN_OK)
        code = tni_dp_check_range("sigma of the count", a->sigma, 0, true, 1e9, err);
    return code;
}

tn_code tn_dp_adaptive_split(const tn_dp_adaptive *a, double noise, double *multiplier, tn_err *err) {
    double rest;
    tn_code code = check_adaptive(a, err);

    if (code == TN_OK)
        code = tni_dp_check_range("noise", noise, TNI_DP_SIGMA_MIN, false, 1e4, err);
    if (code != TN_OK)
        return code;
    rest = 1 / (noise * noise) - 1 / (4 * a->sigma * a->sigma);
    if (!(rest > 0))
        return tn_fail(err, TN_EINVAL,
                       "sigma of the count is %g; it must be above half the noise, %g: take more clients "
                       "a round, or a fixed clip",
                       a->sigma, noise / 2);
    *multiplier = 1 / sqrt(rest);
    return TN_OK;
}

double tn_dp_adaptive_clip(const tn_dp_adaptive *a, double clip, double share) {
    return clip * exp(-a->rate * (share - a->quantile));
}

/* Each update adds +1 (within) or -1: an integer of size 1, whose noise has the multiplier 2 sigma. Nobody
 * adds 0, so that the denominator need not be how many there were. */
tn_code tn_dp_adapt(const tn_dp_adaptive *a, double clip, uint64_t within, uint64_t n, double denominator,
                    const tn_dp_random *source, double *next, tn_err *err) {
    tn_dp_sampler *noise = NULL;
    int64_t z = 0;
    tn_code code = check_adaptive(a, err);

    assert(within <= n);
    if (code == TN_OK)
        code = tni_dp_check_range("denominator", denominator, 0, true, 1e9, err);
    if (code == TN_OK)
        code = tn_dp_sampler_new(&noise, TN_DP_SAMPLE_GAUSSIAN, 4 * a->sigma * a->sigma, source, err);
    if (code != TN_OK)
        return code;
    tn_dp_sample(noise, &z, 1);
    tn_dp_sampler_free(noise);
    z += (int64_t)within - (int64_t)(n - within);
    *next = tn_dp_adaptive_clip(a, clip, 0.5 + (double)z / (2 * denominator));
    return TN_OK;
}

/* ---- Local ---- */

tn_code tn_dp_local_check(const tn_dp_local *p, const tn_layout *l, tn_dp_grid *g, tn_err *err) {
    double sigma = 1, gap;
    tn_code code;

    if ((code = tni_dp_check_range("epsilon", p->epsilon, 0, true, 100, err)) != TN_OK ||
        (code = tni_dp_check_delta(p->delta, err)) != TN_OK ||
        (code = tn_dp_grid_init(g, l, p->clip, 1, err)) != TN_OK) /* of the dimension */
        return code;
    gap = (1 + exp(p->epsilon)) * sqrt((double)g->dimension) / (30 * SIGMA * SIGMA);
    if (gap > p->delta / 2)
        return tn_fail(err, TN_EINVAL,
                       "delta is %g; with epsilon %g and %llu numbers the discrete noise needs %.2g at least",
                       p->delta, p->epsilon, (unsigned long long)g->dimension, 2 * gap);
    code = tn_dp_gaussian_sigma(p->epsilon, p->delta - gap, &sigma, err);
    return code == TN_OK ? tn_dp_grid_init(g, l, p->clip, 2 * sigma, err) : code;
}

tn_code tn_dp_randomise(const tn_dp_local *p, const tn_layout *l, const tn_dp_random *source, void *delta,
                        tn_err *err) {
    const void *const one[1] = {delta};
    uint64_t within;
    tn_dp_grid g;
    tn_code code = tn_dp_local_check(p, l, &g, err);

    /* a piece is read before it is written, and the norm before that */
    return code == TN_OK ? tn_dp_mean(&g, l, one, 1, 1, source, delta, &within, err) : code;
}

/* Noise in shares: what one client adds to a secure sum. The server never sees anything but the sum, so the
 * noise of all clients together protects each; how many shares will be in it is not known when a share is
 * drawn, so each is large enough for the fewest survivors that the sum is opened for. */
#include <math.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "privacy/dp_internal.h"

#define FRACTION 16 /* bits behind the point before rounding */
#define TRIES 1000
#define PIECE 4096

static tn_dp_sampled sampled_of(tn_dp_shared noise) {
    return noise == TN_DP_SKELLAM ? TN_DP_SAMPLE_SKELLAM : TN_DP_SAMPLE_GAUSSIAN;
}

static double share_variance(const tn_dp_distributed *d) { return d->scale * d->sigma * d->scale * d->sigma; }

/* ---- Settings ---- */

static tn_code spent_with(const tn_dp_distributed *d, double sigma, uint64_t count, double delta,
                          double *epsilon, tn_err *err) {
    tn_dp_distributed with = *d;
    tn_dp_spent spent;
    tn_code code;

    with.sigma = sigma;
    code = tn_dp_distributed_epsilon(&with, count, delta, NULL, 0, &spent, err);
    *epsilon = spent.epsilon;
    return code;
}

tn_code tn_dp_distributed_calibrate(const tn_dp_distributed *d, double epsilon, uint64_t count, double delta,
                                    double *sigma, tn_err *err) {
    double low = 0, high = d->clip, got = 0;
    tn_code code;

    if ((code = tni_dp_check_range("epsilon", epsilon, 0, true, 1e6, err)) != TN_OK ||
        (code = tni_dp_check_range("clip", d->clip, 0, true, 1e3, err)) != TN_OK)
        return code;
    while ((code = spent_with(d, high, count, delta, &got, err)) == TN_OK && got > epsilon &&
           high < 1e6 * d->clip) {
        low = high;
        high *= 2;
    }
    if (code == TN_OK && got > epsilon)
        return tn_fail(err, TN_EINVAL, "no sigma up to %g keeps %llu sums within epsilon %g at delta %g", high,
                       (unsigned long long)count, epsilon, delta);
    for (int i = 0; code == TN_OK && i < 200 && high - low > 1e-4 * high; i++) {
        double middle = (low + high) / 2;

        code = spent_with(d, middle, count, delta, &got, err);
        if (got > epsilon)
            low = middle;
        else
            high = middle;
    }
    *sigma = high;
    return code;
}

tn_code tn_dp_distributed_bits(const tn_dp_distributed *d, uint64_t most, unsigned *bits, tn_err *err) {
    tn_dp_bounds b;
    double reach;
    tn_code code = tn_dp_rounded_bounds(d, &b, err);

    if (code == TN_OK)
        code = tni_dp_check_range("most clients", (double)most, 1, false, 1e9, err);
    if (code != TN_OK)
        return code;
    reach = (double)most * b.l2 + 12 * sqrt((double)most * share_variance(d)) + 1;
    for (*bits = 2; *bits <= 64; (*bits)++) {
        if (reach < ldexp(1, (int)*bits - 1))
            return TN_OK;
    }
    return tn_fail(err, TN_EINVAL, "scale is %g: a sum of %llu vectors of norm %g would need more than 64 bits",
                   d->scale, (unsigned long long)most, d->clip);
}

/* ---- A share ---- */

/* Rounds in place what has FRACTION bits behind the point, and gives the squared norm. */
static double round_at_random(tni_bits *bits, const int64_t *in, int64_t *out, size_t n) {
    tni_u128 sum = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t size;

        /* towards minus infinity, after a random part of a step: shifts of negative numbers are left to
         * compilers */
        out[i] = in[i] + (int64_t)tni_bits_take(bits, FRACTION);
        out[i] = out[i] >= 0 ? out[i] >> FRACTION : -((-out[i] + (1 << FRACTION) - 1) >> FRACTION);
        size = (uint64_t)(out[i] < 0 ? -out[i] : out[i]);
        sum += (tni_u128)size * size;
    }
    return (double)sum;
}

static void to_points(const tn_layout *l, const void *block, double factor, int64_t *out) {
    for (size_t i = 0; i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];
        size_t n = tni_dp_numbers(e);

        if (n == 0)
            continue;
        tn_k_to_fixed(e->dtype, out, (const uint8_t *)block + e->offset, factor, n);
        out += n;
    }
}

static tn_code rounded(const tn_dp_distributed *d, const tn_layout *l, const void *block,
                       const tn_dp_random *source, int64_t *out, tn_err *err) {
    double norm = tn_dp_norm(l, block), factor = d->scale * (norm > d->clip ? d->clip / norm : 1);
    int64_t *points = malloc(d->dimension * sizeof(*points) + 1);
    tni_bits *bits = malloc(sizeof(*bits));
    tn_dp_bounds b;
    tn_code code = tn_dp_rounded_bounds(d, &b, err);
    int tries = 0;

    if (code == TN_OK && (points == NULL || bits == NULL))
        code =
            tn_fail(err, TN_ENOMEM, "no memory for a vector of %llu numbers", (unsigned long long)d->dimension);
    if (code != TN_OK || points == NULL || bits == NULL)
        goto out;
    tni_bits_init(bits, source);
    to_points(l, block, factor * (1 << FRACTION), points);
    while (round_at_random(bits, points, out, d->dimension) > b.l2 * b.l2 && tries < TRIES)
        tries++;
    if (tries == TRIES)
        code = tn_fail(err, TN_EINTERNAL, "no rounding out of %d was within its bound", TRIES);
out:
    free(bits);
    free(points);
    return code;
}

static tn_code add_noise(const tn_dp_distributed *d, const tn_dp_random *source, int64_t *out, tn_err *err) {
    int64_t *piece = malloc(PIECE * sizeof(*piece));
    tn_dp_sampler *s = NULL;
    tn_code code = piece != NULL ? tn_dp_sampler_new(&s, sampled_of(d->noise), share_variance(d), source, err)
                                 : tn_fail(err, TN_ENOMEM, "no memory for noise");

    for (size_t done = 0; code == TN_OK && done < d->dimension; done += PIECE) {
        size_t n = d->dimension - done < PIECE ? d->dimension - done : PIECE;

        tn_dp_sample(s, piece, n);
        tn_k_add(TN_I64, out + done, out + done, piece, n);
    }
    tn_dp_sampler_free(s);
    free(piece);
    return code;
}

tn_code tn_dp_share(const tn_dp_distributed *d, const tn_layout *l, const void *block,
                    const tn_dp_random *source, int64_t *out, tn_err *err) {
    tn_dp_bounds b;
    uint64_t n = 0;
    tn_code code = tn_dp_rounded_bounds(d, &b, err);

    for (size_t i = 0; i < l->count; i++)
        n += tni_dp_numbers(&l->entry[i]);
    if (code == TN_OK && n != d->dimension)
        return tn_fail(err, TN_EINVAL, "dimension is %llu; the model has %llu numbers that noise can protect",
                       (unsigned long long)d->dimension, (unsigned long long)n);
    if (code == TN_OK && b.l2 > 0x1p45)
        code =
            tn_fail(err, TN_EINVAL, "scale is %g: rounded vectors would have norms up to %g", d->scale, b.l2);
    for (size_t i = 0; code == TN_OK && i < n; i++)
        out[i] = 0;
    if (code == TN_OK && block != NULL)
        code = rounded(d, l, block, source, out, err);
    return code == TN_OK ? add_noise(d, source, out, err) : code;
}

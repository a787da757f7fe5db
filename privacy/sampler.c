/* Discrete noise from random bits.
 *
 * Everything below is integer arithmetic, so that the distribution is what the formulas say. A trial with
 * probability a/b compares random bits with the binary digits of a/b, from the first on, and stops at the
 * first difference: two bits on average, whatever the sizes. A trial with probability exp(-x) for x in [0,
 * 1] counts how many trials with x, x/2, x/3, ... succeed in a row: an even number has probability exp(-x),
 * the alternating series. Canonne, Kamath and Steinke 2020, algorithms 1 (exp), 2 (Laplace) and 3
 * (Gaussian). */
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "privacy/dp_internal.h"

#define FAR 64 /* standard deviations */

/* ---- Random bits ---- */

static void fill_from_system(void *arg, void *p, size_t n) {
    (void)arg;
    tn_random_bytes(p, n);
}

void tni_bits_init(tni_bits *b, const tn_dp_random *source) {
    memset(b, 0, sizeof(*b));
    b->source = source != NULL ? *source : (tn_dp_random){fill_from_system, NULL};
    b->at = sizeof(b->buffer);
}

static void next_word(tni_bits *b) {
    if (b->at == sizeof(b->buffer)) {
        b->source.fill(b->source.arg, b->buffer, sizeof(b->buffer));
        b->at = 0;
    }
    b->word = 0;
    for (unsigned i = 0; i < 8; i++) /* so that a seed means the same on every machine */
        b->word |= (uint64_t)b->buffer[b->at + i] << (8 * i);
    b->at += 8;
    b->left = 64;
}

static unsigned take_bit(tni_bits *b) {
    unsigned bit;

    if (b->left == 0)
        next_word(b);
    bit = (unsigned)(b->word & 1);
    b->word >>= 1;
    b->left--;
    return bit;
}

uint64_t tni_bits_take(tni_bits *b, unsigned n) {
    uint64_t out;

    if (b->left < n)
        next_word(b); /* what was left is thrown away */
    out = n == 64 ? b->word : b->word & ((UINT64_C(1) << n) - 1);
    b->word = n == 64 ? 0 : b->word >> n;
    b->left -= n;
    return out;
}

uint64_t tni_bits_below(tni_bits *b, uint64_t n) {
    unsigned width = 0;
    uint64_t v;

    while (width < 64 && (n - 1) >> width != 0)
        width++;
    if (width == 0)
        return 0;
    do {
        v = tni_bits_take(b, width);
    } while (v >= n);
    return v;
}

/* ---- Trials ---- */

bool tni_bernoulli(tni_bits *b, tni_u128 a, tni_u128 of) {
    if (a >= of)
        return true;
    while (a != 0) {
        unsigned digit;

        a *= 2;
        digit = a >= of;
        if (digit)
            a -= of;
        if (take_bit(b) != digit)
            return digit == 1; /* the bits are below a / of when theirs is the 0 */
    }
    return false; /* no digit is left that the bits could be below */
}

static bool exp_of_fraction(tni_bits *b, tni_u128 a, tni_u128 of) {
    unsigned k = 1;

    /* of * k stays below 2^127: k = 100 has probability 1 / 100! */
    while (tni_bernoulli(b, a, of * k))
        k++;
    return k % 2 == 1;
}

bool tni_bernoulli_exp(tni_bits *b, tni_u128 a, tni_u128 of) {
    for (; a > of; a -= of) {
        if (!exp_of_fraction(b, 1, 1))
            return false;
    }
    return exp_of_fraction(b, a, of);
}

/* ---- The samplers ---- */

struct tn_dp_sampler {
    tn_dp_sampled kind;
    double variance;
    uint64_t num, den;   /* of the variance (Gaussian) or of half of it (Skellam) */
    uint64_t scale;      /* Gaussian: of the Laplace proposals: floor(sigma) + 1 */
    tni_poisson poisson; /* Skellam */
    tni_bits bits;
};

/* P(k) in proportion to exp(-|k| / scale) */
static int64_t laplace(tni_bits *b, uint64_t scale) {
    for (;;) {
        uint64_t u = tni_bits_below(b, scale), v = 0;
        unsigned sign;

        if (!tni_bernoulli_exp(b, u, scale))
            continue;
        while (tni_bernoulli_exp(b, 1, 1))
            v++;
        sign = take_bit(b);
        u += scale * v;
        if (u != 0 || sign == 0) /* zero once, not as both +0 and -0 */
            return sign ? -(int64_t)u : (int64_t)u;
    }
}

static int64_t gaussian(tn_dp_sampler *s) {
    for (;;) {
        int64_t y = laplace(&s->bits, s->scale);
        uint64_t size = (uint64_t)(y < 0 ? -y : y);
        tni_u128 reach = (tni_u128)size * s->scale * s->den,
                 gap = reach > s->num ? reach - s->num : s->num - reach;

        /* (|y| - v / scale)^2 / 2v, with v = num / den */
        if (size < FAR * s->scale &&
            tni_bernoulli_exp(&s->bits, gap * gap, (tni_u128)2 * s->num * s->den * s->scale * s->scale))
            return y;
    }
}

/* The fractions are so small that gap^2, up to (64 scale^2 den)^2, stays below 2^126: scale^2 den below
 * 2^57. */
static void gaussian_init(tn_dp_sampler *s) {
    s->scale = (uint64_t)floor(sqrt(s->variance)) + 1;
    s->den = UINT64_C(1) << 30;
    while (s->den > 1 && (double)s->scale * (double)s->scale * (double)s->den > 0x1p56)
        s->den >>= 1;
    s->num = (uint64_t)ceil(s->variance * (double)s->den);
    s->variance = (double)s->num / (double)s->den;
}

tn_code tn_dp_sampler_new(tn_dp_sampler **out, tn_dp_sampled kind, double variance, const tn_dp_random *source,
                          tn_err *err) {
    tn_dp_sampler *s;
    tn_code code =
        tni_dp_check_range("variance", variance, 0, true, kind == TN_DP_SAMPLE_GAUSSIAN ? 0x1p48 : 0x1p29, err);

    *out = NULL;
    if (code == TN_OK && source == NULL)
        code = tn_random_init(err);
    if (code != TN_OK)
        return code;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a sampler");
    s->kind = kind;
    s->variance = variance;
    tni_bits_init(&s->bits, source);
    if (kind == TN_DP_SAMPLE_GAUSSIAN) {
        gaussian_init(s);
    } else {
        s->den = UINT64_C(1) << 30;
        s->num = (uint64_t)ceil(variance / 2 * (double)s->den);
        s->variance = (double)s->num * 2 / (double)s->den;
        code = tni_poisson_init(&s->poisson, s->num, s->den, err);
    }
    if (code == TN_OK)
        *out = s;
    else
        tn_dp_sampler_free(s);
    return code;
}

void tn_dp_sampler_free(tn_dp_sampler *s) {
    if (s == NULL)
        return;
    tni_poisson_release(&s->poisson);
    sodium_memzero(s, sizeof(*s));
    free(s);
}

double tn_dp_sampler_variance(const tn_dp_sampler *s) { return s->variance; }

void tn_dp_sample(tn_dp_sampler *s, int64_t *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (s->kind == TN_DP_SAMPLE_GAUSSIAN) {
            out[i] = gaussian(s);
        } else {
            int64_t a = tni_poisson_draw(&s->poisson, &s->bits);

            out[i] = a - tni_poisson_draw(&s->poisson, &s->bits);
        }
    }
}

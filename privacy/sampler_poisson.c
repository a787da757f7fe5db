/* The Poisson distribution as a table of integers.
 *
 * The mode has the weight 2^110; from there P(k + 1) = P(k) mean / (k + 1) upwards and P(k - 1) = P(k) k /
 * mean downwards, rounded down, until a weight is 0. A rounding loses less than 1 and all later factors are
 * at most 1, so the entry i steps from the mode is low by less than i, and n steps on either side by less
 * than n^2 in all. Of a total of about 2.5 sqrt(mean) 2^110, with n about 12.4 sqrt(mean), that is 61
 * sqrt(mean) / 2^110: below 2^-89 for every mean up to 2^28. What is cut off behind the last entry is less
 * than that again. */
#include <assert.h>
#include <stdlib.h>

#include "privacy/dp_internal.h"

#define MODE_BITS 110
#define GUIDE_BITS 12

/* w num / den, rounded down; num <= den < 2^62 */
static tni_u128 times(tni_u128 w, uint64_t num, uint64_t den) { return w / den * num + w % den * num / den; }

static size_t count_up(uint64_t mode, uint64_t num, uint64_t den) {
    tni_u128 w = (tni_u128)1 << MODE_BITS;
    size_t n = 0;

    for (uint64_t k = mode; (w = times(w, num, (k + 1) * den)) != 0; k++)
        n++;
    return n;
}

static size_t count_down(uint64_t mode, uint64_t num, uint64_t den) {
    tni_u128 w = (tni_u128)1 << MODE_BITS;
    size_t n = 0;

    for (uint64_t k = mode; k > 0 && (w = times(w, k * den, num)) != 0; k--)
        n++;
    return n;
}

static void add_up(tni_poisson *p) {
    unsigned width = 0;

    for (size_t i = 1; i < p->n; i++)
        p->upto[i] += p->upto[i - 1];
    while (p->upto[p->n - 1] >> width != 0)
        width++;
    assert(width > MODE_BITS);
    p->shift = width - GUIDE_BITS;
    for (size_t g = 0, i = 0; g <= (size_t)1 << GUIDE_BITS; g++) {
        while (i + 1 < p->n && p->upto[i] <= (tni_u128)g << p->shift)
            i++;
        p->guide[g] = (uint32_t)i;
    }
}

tn_code tni_poisson_init(tni_poisson *p, uint64_t num, uint64_t den, tn_err *err) {
    uint64_t mode = num / den;
    size_t below = count_down(mode, num, den), above = count_up(mode, num, den);
    tni_u128 w = (tni_u128)1 << MODE_BITS;

    p->n = below + 1 + above;
    p->first = (int64_t)(mode - below);
    p->upto = malloc(p->n * sizeof(*p->upto));
    p->guide = malloc((((size_t)1 << GUIDE_BITS) + 1) * sizeof(*p->guide));
    if (p->upto == NULL || p->guide == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a table of %zu Poisson weights", p->n);
    p->upto[below] = w;
    for (size_t i = 0; i < above; i++)
        p->upto[below + 1 + i] = w = times(w, num, (mode + 1 + i) * den);
    w = (tni_u128)1 << MODE_BITS;
    for (size_t i = 0; i < below; i++)
        p->upto[below - 1 - i] = w = times(w, (mode - i) * den, num);
    add_up(p);
    return TN_OK;
}

void tni_poisson_release(tni_poisson *p) {
    free(p->upto);
    free(p->guide);
    p->upto = NULL;
    p->guide = NULL;
}

int64_t tni_poisson_draw(const tni_poisson *p, tni_bits *b) {
    const unsigned width = p->shift + GUIDE_BITS; /* 110 to 126 */
    size_t low, high;
    tni_u128 u;

    do {
        u = (tni_u128)tni_bits_take(b, width - 64) << 64;
        u |= tni_bits_take(b, 64);
    } while (u >= p->upto[p->n - 1]);
    low = p->guide[u >> p->shift];
    high = p->guide[(u >> p->shift) + 1];
    while (low < high) { /* the first entry whose sum is above u */
        size_t middle = (low + high) / 2;

        if (p->upto[middle] > u)
            high = middle;
        else
            low = middle + 1;
    }
    return p->first + (int64_t)low;
}

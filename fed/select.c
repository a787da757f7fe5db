/* Who takes part: the uniform choice.
 *
 * Selection sampling (Knuth, The Art of Computer Programming, volume 2, section 3.4.2, Algorithm S): one
 * pass, integers only, the picks come out in order. */
#include "core/random.h"
#include "fed/internal.h"

/* Each of the three numbers goes through the generator's mixer, so that neighbouring rounds share nothing. */
static tn_rng seeded(uint64_t seed, uint64_t round, uint32_t attempt) {
    tn_rng r = tn_rng_seed(seed);

    r = tn_rng_seed(tn_rng_u64(&r) ^ round);
    return tn_rng_seed(tn_rng_u64(&r) ^ attempt);
}

void tni_select_uniform(size_t n, size_t k, uint64_t seed, uint64_t round, uint32_t attempt, size_t *picked) {
    tn_rng r = seeded(seed, round, attempt);
    size_t have = 0;

    for (size_t i = 0; have < k; i++) {
        if (tn_rng_below(&r, n - i) < k - have)
            picked[have++] = i;
    }
}

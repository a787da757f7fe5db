/* Randomness: the system's, and a seeded generator whose every step is written here so that seeds keep
 * meaning. */
#include "core/random.h"

#include <assert.h>
#include <sodium.h>

tn_code tn_random_init(tn_err *err) {
    if (sodium_init() < 0) /* 1: already done */
        return tn_fail(err, TN_EINTERNAL, "no random source; check that /dev/urandom is readable");
    return TN_OK;
}

void tn_random_bytes(void *p, size_t n) {
    if (n != 0) /* libsodium declares p never NULL */
        randombytes_buf(p, n);
}

tn_rng tn_rng_seed(uint64_t seed) {
    tn_rng r = {.state = seed};

    return r;
}

uint64_t tn_rng_u64(tn_rng *r) {
    uint64_t z = r->state += UINT64_C(0x9E3779B97F4A7C15); /* the golden ratio, so that states do not cluster */

    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

uint64_t tn_rng_below(tn_rng *r, uint64_t n) {
    uint64_t skip, v;

    assert(n > 0);
    /* The lowest 2^64 mod n values are drawn again: what is left is a whole number of copies of [0, n). */
    skip = (UINT64_MAX - n + 1) % n;
    do {
        v = tn_rng_u64(r);
    } while (v < skip);
    return v % n;
}

double tn_rng_unit(tn_rng *r) { return (double)(tn_rng_u64(r) >> 11) * 0x1p-53; }

/* Randomness from the operating system (libsodium). Any thread. tn_random_init is called by every user
 * that may be first; it is idempotent and fails only when the system has no random source. */
#ifndef TN_CORE_RANDOM_H
#define TN_CORE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

TN_API tn_code tn_random_init(tn_err *err);
TN_API void tn_random_bytes(void *p, size_t n);

/* A seeded, reproducible generator (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
 * generators", OOPSLA 2014; the mixer is Stafford's variant 13) for simulations, back-off and sampling whose
 * seed is recorded. Not for secrets. A plain value, one thread at a time. */
typedef struct tn_rng {
    uint64_t state;
} tn_rng;
TN_API tn_rng tn_rng_seed(uint64_t seed);
TN_API uint64_t tn_rng_u64(tn_rng *r);
TN_API uint64_t tn_rng_below(tn_rng *r, uint64_t n); /* uniform in [0, n) without bias; n > 0 */
TN_API double tn_rng_unit(tn_rng *r);                /* [0, 1) */

#endif

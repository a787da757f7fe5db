/* Shared between the files of the accountants; nothing else includes it. */
#ifndef TN_PRIVACY_DP_INTERNAL_H
#define TN_PRIVACY_DP_INTERNAL_H

#include <stdbool.h>

#include "privacy/dp.h"

#define TNI_DP_SIGMA_MIN 0.01
#define TNI_DP_SIGMA_MAX 1e6
#define TNI_DP_PLD_SIGMA_MIN 0.1 /* below, a single step's loss runs into hundreds */
#define TNI_DP_COUNT_MAX UINT64_C(1000000000)

tn_code tni_dp_check_range(const char *name, double v, double low, bool open, double high, tn_err *err);
tn_code tni_dp_check_delta(double delta, tn_err *err);
/* The smallest epsilon over the orders whose divergences are rdp[]. */
tn_dp_spent tni_dp_convert(const double *orders, const double *rdp, size_t n, double delta);

/* accountant_rdp.c */
tn_code tni_dp_check_orders(const double *orders, size_t n, tn_err *err);
double tni_dp_rdp_of(const tn_dp_step *s, double order);

/* accountant_pld.c; the steps are checked */
tn_code tni_dp_pld_epsilon(const tn_dp_step *step, size_t nsteps, double delta, double *epsilon, tn_err *err);

/* accountant_fft.c: the discrete Fourier transform in place, re and im interleaved, n a power of two.
 * forward leaves frequency k at the index with k's bits reversed, from where inverse takes it. The twiddle
 * factors serve every transform of that size. */
typedef struct tni_fft {
    size_t n;
    double *twiddle;
} tni_fft;
tn_code tni_fft_init(tni_fft *f, size_t n, tn_err *err); /* releasable even when it fails */
void tni_fft_release(tni_fft *f);
void tni_fft_forward(const tni_fft *f, double *x);
void tni_fft_inverse(const tni_fft *f, double *x); /* with the factor 1/n */

/* dp.c: how many numbers of a tensor noise protects: 0 of integer ones */
size_t tni_dp_numbers(const tn_layout_entry *e);

/* sampler.c: random bits, and the trials made of them. a/b is at most 1, b below 2^126. */
__extension__ typedef unsigned __int128 tni_u128;
typedef struct tni_bits {
    tn_dp_random source;
    uint64_t word; /* `left` of its low bits are not used yet */
    unsigned left;
    size_t at; /* of buffer */
    uint8_t buffer[4096];
} tni_bits;
void tni_bits_init(tni_bits *b, const tn_dp_random *source);
uint64_t tni_bits_take(tni_bits *b, unsigned n);              /* n random bits, 1 to 64 */
uint64_t tni_bits_below(tni_bits *b, uint64_t n);             /* uniform in [0, n), n > 0 */
bool tni_bernoulli(tni_bits *b, tni_u128 a, tni_u128 of);     /* true with probability a / of */
bool tni_bernoulli_exp(tni_bits *b, tni_u128 a, tni_u128 of); /* with exp(-a / of), a / of >= 0 */

/* sampler_poisson.c: the Poisson distribution with mean num / den as integer weights */
typedef struct tni_poisson {
    int64_t first; /* the value of entry 0 */
    size_t n;
    tni_u128 *upto; /* the sum of the weights up to and with each entry; the last is their total, below 2^127 */
    uint32_t *guide; /* where to begin to look, by the top bits of a draw */
    unsigned shift;
} tni_poisson;
tn_code tni_poisson_init(tni_poisson *p, uint64_t num, uint64_t den,
                         tn_err *err); /* releasable when it fails */
void tni_poisson_release(tni_poisson *p);
int64_t tni_poisson_draw(const tni_poisson *p, tni_bits *b);

#endif

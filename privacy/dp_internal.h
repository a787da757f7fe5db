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

/* accountant_fft.c: the discrete Fourier transform in place, re and im interleaved, n a power of two. forward
 * leaves frequency k at the index with k's bits reversed, from where inverse takes it. The twiddle factors serve
 * every transform of that size. */
typedef struct tni_fft {
    size_t n;
    double *twiddle;
} tni_fft;
tn_code tni_fft_init(tni_fft *f, size_t n, tn_err *err); /* releasable even when it fails */
void tni_fft_release(tni_fft *f);
void tni_fft_forward(const tni_fft *f, double *x);
void tni_fft_inverse(const tni_fft *f, double *x); /* with the factor 1/n */

#endif

/* What the files of kernels/ share: one table of functions per instruction set.
 *
 * simd_scalar.c is the reference: one plain loop, one element at a time, written on its own. simd.inc is the fast
 * source, compiled once per instruction set by simd_baseline.c, simd_avx2.c and simd_avx512.c. Both must give the
 * same bits, which three rules make possible:
 *  - the order of the operations on one element is that of the sources; only different elements run side by side;
 *  - no fused multiply-add (-ffp-contract=off for every file here);
 *  - a NaN result is always the positive quiet NaN without payload (0x7fc00000 for float32; 0x7f for float8 with
 *    sign bit, 0x80 for the fnuz formats, 0xff for e8m0), because which operand's payload survives is up to the
 *    compiler and the CPU. */
#ifndef TN_KERNELS_INTERNAL_H
#define TN_KERNELS_INTERNAL_H

#include "kernels/kernels.h"

/* Arguments are those of the tn_k_ functions, checked. k and n may be any size, n = 0 included. */
typedef struct tni_kernels {
    const char *name;
    void (*reduce)(tn_op op, tn_dtype dtype, void *dst, const void *const *src, const double *weights, size_t k,
                   size_t n);
    void (*sub)(tn_dtype dtype, void *dst, const void *a, const void *b, size_t n);
    size_t (*first_nonfinite)(tn_dtype dtype, const void *a, size_t n);
    double (*sumsq)(tn_dtype dtype, const void *a, size_t n);
} tni_kernels;

/* One number of a floating or complex format (a complex element is two) as float64, and back, rounded once. */
double tni_scalar_get(tn_dtype dtype, const void *p, size_t i);
void tni_scalar_put(tn_dtype dtype, void *p, size_t i, double v);

extern const tni_kernels tni_kernels_scalar;
extern const tni_kernels tni_kernels_baseline;
#if defined(__x86_64__)
extern const tni_kernels tni_kernels_avx2;
extern const tni_kernels tni_kernels_avx512;
#endif

/* sumsq adds the squares of a block of TNI_SUMSQ_BLOCK numbers in TNI_SUMSQ_LANES running sums, number i in sum
 * i modulo TNI_SUMSQ_LANES, and then those: ((0+4) + (2+6)) + ((1+5) + (3+7)). Blocks are added as a binary tree
 * whose left half is the largest power of two of blocks that leaves something for the right. A complex number
 * counts as two numbers. */
#define TNI_SUMSQ_BLOCK 128
#define TNI_SUMSQ_LANES 8

#endif

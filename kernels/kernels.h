/* Tensor kernels: every arithmetic loop over tensor data of the project lives behind this header.
 *
 * All pointers are to packed (contiguous) elements of the given dtype, any alignment that the dtype itself needs.
 * The functions are pure: thread-safe, no allocation, no errors at run time once the *_supported question was
 * answered true (asserted). The instruction set (baseline, AVX2, AVX-512) is chosen once, at first use;
 * TN_CPU=scalar|baseline|avx2|avx512 in the environment forces one, for tests and bug reports. Every variant gives
 * the same bits as the scalar reference: no fused multiply-add, no reassociation across elements.
 *
 * Rounding. float16, bfloat16 and float8 are computed in float32 and rounded to nearest even once at the end.
 * Integer SUM and PRODUCT wrap modulo 2^bits; integer AVG truncates towards zero as torch does. bool: SUM and MAX
 * are OR, PRODUCT and MIN are AND (torch's meaning: the result is 0 or 1; any byte but 0 counts as true). MIN and MAX
 * hand on NaN, and of equals (0 and -0) the first. What is too large for a small float becomes what torch makes of it:
 * Inf in float16, bfloat16 and float8_e5m2, the largest number in float8_e4m3fn, NaN in the fnuz formats.
 *
 * A NaN result is always the positive quiet NaN without payload, so that results can be compared as bytes. */
#ifndef TN_KERNELS_H
#define TN_KERNELS_H

#include "core/tensor.h"

typedef enum tn_op {
    TN_SUM = 0,
    TN_AVG = 1,
    TN_PRODUCT = 2,
    TN_MIN = 3,
    TN_MAX = 4,
    TN_BAND = 5,
    TN_BOR = 6,
    TN_BXOR = 7,
    TN_PREMUL_SUM = 8, /* sum of factor_k * x_k */
    TN_WMEAN = 9,      /* (sum of w_k * x_k) / (sum of w_k); floating and complex dtypes */
} tn_op;
#define TN_OP_COUNT 10

TN_API const char *tn_op_name(tn_op op); /* "SUM", ... as in torch.distributed.ReduceOp */

/* Whether torch.distributed defines op for dtype: bitwise ops only for integers and bool; MIN and MAX not for complex;
 * AVG not for bool; PREMUL_SUM and WMEAN for floating and complex. float8_e8m0fnu, which has neither zero nor sign:
 * MIN and MAX only. */
TN_API bool tn_k_reduce_supported(tn_op op, tn_dtype dtype);
/* The same as an error: "BAND is not defined for float32: ...". */
TN_API tn_code tn_k_reduce_check(tn_op op, tn_dtype dtype, tn_err *err);

/* dst[i] = op over k of src[k][i], the sources taken in the order given, k >= 1. dst may be one of the sources, or
 * overlap none. The accumulator is float32 for 16- and 8-bit floats, the dtype itself for the rest and for SUM, AVG,
 * MIN, MAX, PRODUCT; float64 (for float64: float64 too) for WMEAN, rounded once. `weights` (one per source) is read by
 * PREMUL_SUM (the factors) and WMEAN only, else may be NULL. WMEAN needs finite weights >= 0 with a sum > 0 (asserted);
 * a source of weight 0 does not contribute, whatever it holds. Blocked so that the accumulators stay in cache. */
TN_API void tn_k_reduce(tn_op op, tn_dtype dtype, void *dst, const void *const *src, const double *weights, size_t k,
                        size_t n);

/* dst[i] = a[i] + b[i] and a[i] - b[i] in dtype (float32 for the small floats); dst may be a or b. All dtypes but
 * bool and F8_E8M0. */
TN_API void tn_k_add(tn_dtype dtype, void *dst, const void *a, const void *b, size_t n);
TN_API void tn_k_sub(tn_dtype dtype, void *dst, const void *a, const void *b, size_t n);
/* dst[i] = factor * a[i]; floating and complex dtypes. */
TN_API void tn_k_scale(tn_dtype dtype, void *dst, const void *a, double factor, size_t n);
/* Index of the first NaN or Inf (a complex number with either part so), or n when all are finite. Integers: n. */
TN_API size_t tn_k_first_nonfinite(tn_dtype dtype, const void *a, size_t n);
/* Sum of |a[i]|^2 in float64, in a fixed order (pairwise over blocks of 128 numbers, two to a complex element);
 * floating and complex dtypes. */
TN_API double tn_k_sumsq(tn_dtype dtype, const void *a, size_t n);
/* dst[i] = src[i] * scale, in float64 and rounded to the nearest integer, ties to even; beyond 2^62 it is 2^62. And
 * dst[i] = src[i] * scale in float64, rounded once more to dtype. n numbers, two to a complex element; src of
 * to_fixed is finite. Floating and complex dtypes; from_fixed without F8_E8M0. */
TN_API void tn_k_to_fixed(tn_dtype dtype, int64_t *dst, const void *src, double scale, size_t n);
TN_API void tn_k_from_fixed(tn_dtype dtype, void *dst, const int64_t *src, double scale, size_t n);
/* "avx512", "avx2", "baseline" or "scalar": what was chosen. */
TN_API const char *tn_k_variant(void);
/* For tests and benchmarks: choose by name. TN_EUNSUPPORTED when this CPU lacks it. Not thread-safe. */
TN_API tn_code tn_k_force(const char *variant, tn_err *err);

#endif

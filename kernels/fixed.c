/* Floating-point numbers to integers on a grid and back: what noise and secure sums are made of. One loop for all
 * instruction sets: the sums around it are what takes time. */
#include <assert.h>
#include <math.h>

#include "kernels/internal.h"

#define LIMIT 0x1p62

static int64_t nearest(double v) { return (int64_t)llrint(fmin(fmax(v, -LIMIT), LIMIT)); }

void tn_k_to_fixed(tn_dtype dtype, int64_t *dst, const void *src, double scale, size_t n) {
    assert(tn_dtype_valid((int)dtype) && !tn_dtype_is_integer(dtype));
    for (size_t i = 0; i < n; i++) {
        if (dtype == TN_F32 || dtype == TN_C64)
            dst[i] = nearest((double)((const float *)src)[i] * scale);
        else if (dtype == TN_F64 || dtype == TN_C128)
            dst[i] = nearest(((const double *)src)[i] * scale);
        else
            dst[i] = nearest(tni_scalar_get(dtype, src, i) * scale);
    }
}

void tn_k_from_fixed(tn_dtype dtype, void *dst, const int64_t *src, double scale, size_t n) {
    assert(tn_dtype_valid((int)dtype) && !tn_dtype_is_integer(dtype) && dtype != TN_F8_E8M0);
    for (size_t i = 0; i < n; i++) {
        if (dtype == TN_F32 || dtype == TN_C64)
            ((float *)dst)[i] = (float)((double)src[i] * scale);
        else if (dtype == TN_F64 || dtype == TN_C128)
            ((double *)dst)[i] = (double)src[i] * scale;
        else
            tni_scalar_put(dtype, dst, i, (double)src[i] * scale);
    }
}

/* The reference kernels: one element at a time, as the definitions read. Slow, and never chosen unless asked for;
 * the tests hold every other variant against this file.
 *
 * Real numbers travel as float64, which holds every value of every format exactly. A float32 operation is done in
 * float64 and rounded to float32: with 53 bits, over 2 * 24 + 2, this is the correctly rounded float32 result. */
#include "kernels/internal.h"

#include <math.h>
#include <string.h>

/* ---- formats of 8 and 16 bits -------------------------------------------------------------------------------- */

/* The value of a code without its sign bit is mantissa * 2^(exponent - bias - mbits), as in IEEE 754. */
typedef struct format {
    int mbits;         /* bits of the mantissa below the exponent */
    int bias;
    uint32_t sign;     /* the sign bit */
    uint32_t max;      /* code of the largest finite number */
    uint32_t overflow; /* what larger numbers become in torch: Inf, NaN in the fnuz formats, max in e4m3fn */
    uint32_t nan;
    bool neg_zero;
} format;

static const format formats[TN_DTYPE_COUNT] = {
    [TN_F16] = {10, 15, 0x8000, 0x7bff, 0x7c00, 0x7e00, true},
    [TN_BF16] = {7, 127, 0x8000, 0x7f7f, 0x7f80, 0x7fc0, true},
    [TN_F8_E4M3] = {3, 7, 0x80, 0x7e, 0x7e, 0x7f, true},
    [TN_F8_E5M2] = {2, 15, 0x80, 0x7b, 0x7c, 0x7f, true},
    [TN_F8_E4M3FNUZ] = {3, 8, 0x80, 0x7f, 0x80, 0x80, false},
    [TN_F8_E5M2FNUZ] = {2, 16, 0x80, 0x7f, 0x80, 0x80, false},
};

static double decode(const format *f, uint32_t code) {
    uint32_t mag = code & (f->sign - 1);
    int exponent = (int)(mag >> f->mbits);
    uint32_t mantissa = mag & ((1U << f->mbits) - 1);
    double v;

    if (mag > f->max || (!f->neg_zero && code == f->nan))
        v = mag == f->overflow && f->overflow != f->nan ? (double)INFINITY : (double)NAN;
    else if (exponent == 0)
        v = ldexp(mantissa, 1 - f->bias - f->mbits);
    else
        v = ldexp(mantissa + (1U << f->mbits), exponent - f->bias - f->mbits);
    return (code & f->sign) != 0 ? -v : v;
}

/* Rounds to nearest, ties to even, once. */
static uint32_t encode(const format *f, double v) {
    uint32_t sign = signbit(v) ? f->sign : 0;
    uint32_t code;
    int e;

    if (isnan(v))
        return f->nan;
    if (v == 0) {
        code = 0;
    } else if (isinf(v)) {
        code = f->overflow;
    } else {
        (void)frexp(v, &e);
        e = e - 1 < 1 - f->bias ? 1 - f->bias : e - 1; /* the exponent of v, not below that of the subnormals */
        if (e > f->bias + 1)
            code = f->overflow;
        else
            code = ((uint32_t)(e + f->bias - 1) << f->mbits) + (uint32_t)nearbyint(ldexp(fabs(v), f->mbits - e));
        if (code > f->max)
            code = f->overflow;
    }
    if (code == f->nan || (code == 0 && !f->neg_zero))
        return code;
    return code | sign;
}

/* ---- numbers of any real format; a complex number is two of them --------------------------------------------- */

double tni_scalar_get(tn_dtype dtype, const void *p, size_t i) {
    const uint8_t *b = p;

    switch (dtype) {
    case TN_F64:
    case TN_C128:
        return ((const double *)p)[i];
    case TN_F32:
    case TN_C64:
        return (double)((const float *)p)[i];
    case TN_F16:
    case TN_BF16:
        return decode(&formats[dtype], ((const uint16_t *)p)[i]);
    case TN_F8_E8M0:
        return b[i] == 0xff ? (double)NAN : ldexp(1, b[i] - 127);
    default:
        return decode(&formats[dtype], b[i]);
    }
}

void tni_scalar_put(tn_dtype dtype, void *p, size_t i, double v) {
    switch (dtype) {
    case TN_F64:
    case TN_C128:
        ((double *)p)[i] = isnan(v) ? (double)NAN : v;
        break;
    case TN_F32:
    case TN_C64:
        ((float *)p)[i] = isnan(v) ? NAN : (float)v;
        break;
    case TN_F16:
    case TN_BF16:
        ((uint16_t *)p)[i] = (uint16_t)encode(&formats[dtype], v);
        break;
    case TN_F8_E8M0: /* only numbers that get has read */
        ((uint8_t *)p)[i] = isnan(v) ? 0xff : (uint8_t)(ilogb(v) + 127);
        break;
    default:
        ((uint8_t *)p)[i] = (uint8_t)encode(&formats[dtype], v);
        break;
    }
}

/* Rounds to the accumulator of dtype. */
static double acc_round(tn_dtype dtype, double v) {
    return dtype == TN_F64 || dtype == TN_C128 ? v : (double)(float)v;
}

static double real_op(tn_op op, tn_dtype dtype, double a, double b) {
    switch (op) {
    case TN_PRODUCT:
        return acc_round(dtype, a * b);
    case TN_MIN: /* NaN is handed on; of equals (0 and -0) the first stays */
        return b < a || isnan(b) ? b : a;
    case TN_MAX:
        return b > a || isnan(b) ? b : a;
    default:
        return acc_round(dtype, a + b);
    }
}

static double real_element(tn_op op, tn_dtype dtype, const void *const *src, const double *weights, size_t k,
                           size_t i) {
    double acc = 0;

    for (size_t j = 0; j < k; j++) {
        double x = tni_scalar_get(dtype, src[j], i);

        if (op == TN_PREMUL_SUM)
            x = acc_round(dtype, acc_round(dtype, weights[j]) * x);
        acc = j == 0 ? x : real_op(op, dtype, acc, x);
    }
    return op == TN_AVG ? acc_round(dtype, acc / acc_round(dtype, (double)k)) : acc;
}

static double mean_element(tn_dtype dtype, const void *const *src, const double *weights, size_t k, size_t i) {
    double acc = 0, total = 0;
    bool first = true;

    for (size_t j = 0; j < k; j++) {
        double x;

        if (weights[j] == 0) /* does not contribute, not even a NaN */
            continue;
        x = weights[j] * tni_scalar_get(dtype, src[j], i);
        acc = first ? x : acc + x;
        total += weights[j];
        first = false;
    }
    return acc / total;
}

static void complex_product(tn_dtype dtype, void *dst, const void *const *src, size_t k, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double re = tni_scalar_get(dtype, src[0], 2 * i), im = tni_scalar_get(dtype, src[0], 2 * i + 1);

        for (size_t j = 1; j < k; j++) {
            double x = tni_scalar_get(dtype, src[j], 2 * i), y = tni_scalar_get(dtype, src[j], 2 * i + 1);
            double r = acc_round(dtype, acc_round(dtype, re * x) - acc_round(dtype, im * y));

            im = acc_round(dtype, acc_round(dtype, re * y) + acc_round(dtype, im * x));
            re = r;
        }
        tni_scalar_put(dtype, dst, 2 * i, re);
        tni_scalar_put(dtype, dst, 2 * i + 1, im);
    }
}

/* ---- integers and bool: 64 bits wide, modulo 2^64, cut to the dtype at the end ------------------------------- */

static bool is_signed(tn_dtype dtype) {
    return dtype == TN_I8 || dtype == TN_I16 || dtype == TN_I32 || dtype == TN_I64;
}

static uint64_t int_get(tn_dtype dtype, const void *p, size_t i) {
    switch (dtype) {
    case TN_BOOL:
        return ((const uint8_t *)p)[i] != 0;
    case TN_U8:
        return ((const uint8_t *)p)[i];
    case TN_I8:
        return (uint64_t)((const int8_t *)p)[i];
    case TN_I16:
        return (uint64_t)((const int16_t *)p)[i];
    case TN_I32:
        return (uint64_t)((const int32_t *)p)[i];
    case TN_U16:
        return ((const uint16_t *)p)[i];
    case TN_U32:
        return ((const uint32_t *)p)[i];
    default:
        return ((const uint64_t *)p)[i];
    }
}

static void int_put(tn_dtype dtype, void *p, size_t i, uint64_t v) {
    switch (tn_dtype_size(dtype)) {
    case 1:
        ((uint8_t *)p)[i] = (uint8_t)v;
        break;
    case 2:
        ((uint16_t *)p)[i] = (uint16_t)v;
        break;
    case 4:
        ((uint32_t *)p)[i] = (uint32_t)v;
        break;
    default:
        ((uint64_t *)p)[i] = v;
        break;
    }
}

static uint64_t int_op(tn_op op, tn_dtype dtype, uint64_t a, uint64_t b) {
    bool less = is_signed(dtype) ? (int64_t)b < (int64_t)a : b < a;

    switch (op) {
    case TN_PRODUCT:
        return a * b;
    case TN_MIN:
        return less ? b : a;
    case TN_MAX:
        return less ? a : b;
    case TN_BAND:
        return a & b;
    case TN_BOR:
        return a | b;
    case TN_BXOR:
        return a ^ b;
    default: /* SUM and AVG; for bool SUM is OR */
        return dtype == TN_BOOL ? a | b : a + b;
    }
}

static void int_reduce(tn_op op, tn_dtype dtype, void *dst, const void *const *src, size_t k, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t acc = int_get(dtype, src[0], i);

        for (size_t j = 1; j < k; j++)
            acc = int_op(op, dtype, acc, int_get(dtype, src[j], i));
        int_put(dtype, dst, i, acc);
        if (op == TN_AVG) { /* of the wrapped sum */
            acc = int_get(dtype, dst, i);
            int_put(dtype, dst, i, is_signed(dtype) ? (uint64_t)((int64_t)acc / (int64_t)k) : acc / k);
        }
    }
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static size_t parts(tn_dtype dtype, size_t n) {
    return tn_dtype_is_complex(dtype) ? 2 * n : n;
}

static void reduce(tn_op op, tn_dtype dtype, void *dst, const void *const *src, const double *weights, size_t k,
                   size_t n) {
    if (tn_dtype_is_integer(dtype)) {
        int_reduce(op, dtype, dst, src, k, n);
    } else if (tn_dtype_is_complex(dtype) && op == TN_PRODUCT) {
        complex_product(dtype, dst, src, k, n);
    } else {
        for (size_t i = 0; i < parts(dtype, n); i++)
            tni_scalar_put(dtype, dst, i, op == TN_WMEAN ? mean_element(dtype, src, weights, k, i)
                                              : real_element(op, dtype, src, weights, k, i));
    }
}

static void sub(tn_dtype dtype, void *dst, const void *a, const void *b, size_t n) {
    if (tn_dtype_is_integer(dtype)) {
        for (size_t i = 0; i < n; i++)
            int_put(dtype, dst, i, int_get(dtype, a, i) - int_get(dtype, b, i));
    } else {
        for (size_t i = 0; i < parts(dtype, n); i++)
            tni_scalar_put(dtype, dst, i, acc_round(dtype, tni_scalar_get(dtype, a, i) - tni_scalar_get(dtype, b, i)));
    }
}

static size_t first_nonfinite(tn_dtype dtype, const void *a, size_t n) {
    size_t i = 0;

    while (i < parts(dtype, n) && isfinite(tni_scalar_get(dtype, a, i)))
        i++;
    return tn_dtype_is_complex(dtype) ? i / 2 : i;
}

static double sumsq_blocks(tn_dtype dtype, const void *a, size_t start, size_t n) {
    double s[TNI_SUMSQ_LANES] = {0};
    size_t left = TNI_SUMSQ_BLOCK;

    if (n > TNI_SUMSQ_BLOCK) {
        while (2 * left < n)
            left *= 2;
        return sumsq_blocks(dtype, a, start, left) + sumsq_blocks(dtype, a, start + left, n - left);
    }
    for (size_t i = 0; i < n; i++) {
        double x = tni_scalar_get(dtype, a, start + i);

        s[i % TNI_SUMSQ_LANES] += x * x;
    }
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static double sumsq(tn_dtype dtype, const void *a, size_t n) {
    double s = sumsq_blocks(dtype, a, 0, parts(dtype, n));

    return isnan(s) ? (double)NAN : s;
}

const tni_kernels tni_kernels_scalar = {
    .name = "scalar", .reduce = reduce, .sub = sub, .first_nonfinite = first_nonfinite, .sumsq = sumsq};

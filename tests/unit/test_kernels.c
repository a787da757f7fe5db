/* What the kernels compute: known numbers, worked out by hand or by torch, for each variant that this CPU can run.
 * test_kernels_variants.c holds the variants against each other on many more inputs. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

static const char *const variants[] = {"scalar", "baseline", "avx2", "avx512"};
#define VARIANTS 4

/* False when this CPU lacks the variant, which then has nothing to show. */
static bool use(int i) {
    tn_err err = TN_ERR_INIT;
    tn_code rc = tn_k_force(variants[i], &err);

    ck_assert(rc == TN_OK || (rc == TN_EUNSUPPORTED && i >= 2));
    if (rc == TN_OK)
        ck_assert_str_eq(tn_k_variant(), variants[i]);
    return rc == TN_OK;
}

#define REDUCE(op, dtype, dst, weights, ...)                                                                       \
    do {                                                                                                           \
        const void *const src_[] = {__VA_ARGS__};                                                                  \
        tn_k_reduce(op, dtype, dst, src_, weights, sizeof(src_) / sizeof(src_[0]),                                 \
                    sizeof(dst) / tn_dtype_size(dtype));                                                           \
    } while (0)
/* Bytes, so that -0 differs from 0 and NaN equals itself. */
#define SAME(got, want)                                                                                            \
    do {                                                                                                           \
        ck_assert_uint_eq(sizeof(got), sizeof(want));                                                              \
        ck_assert_mem_eq(got, want, sizeof(got));                                                                  \
    } while (0)

/* ---- what is defined ----------------------------------------------------------------------------------------- */

START_TEST(ops_and_dtypes) {
    static const char *const names[TN_OP_COUNT] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                                   "BAND", "BOR", "BXOR",    "PREMUL_SUM", "WMEAN"};
    /* One column per op in the order above. */
    static const char *const integer = "1111111100", *const real = "1111100011", *const complex_ = "1110000011";

    for (int d = 0; d < TN_DTYPE_COUNT; d++) {
        tn_dtype dtype = (tn_dtype)d;
        const char *row = dtype == TN_BOOL               ? "1011111100"
                          : dtype == TN_F8_E8M0          ? "0001100000"
                          : tn_dtype_is_integer(dtype)   ? integer
                          : tn_dtype_is_complex(dtype)   ? complex_
                                                         : real;

        for (int o = 0; o < TN_OP_COUNT; o++) {
            tn_op op = (tn_op)o;
            tn_err err = TN_ERR_INIT;

            ck_assert_str_eq(tn_op_name(op), names[o]);
            ck_assert_msg(tn_k_reduce_supported(op, dtype) == (row[o] == '1'), "%s %s", names[o],
                          tn_dtype_name(dtype));
            ck_assert_int_eq(tn_k_reduce_check(op, dtype, &err), row[o] == '1' ? TN_OK : TN_EUNSUPPORTED);
            ck_assert(tn_k_reduce_check(op, dtype, NULL) == (row[o] == '1' ? TN_OK : TN_EUNSUPPORTED));
            if (row[o] != '1') {
                ck_assert_ptr_nonnull(strstr(err.msg, names[o]));
                ck_assert_ptr_nonnull(strstr(err.msg, tn_dtype_name(dtype)));
            }
        }
    }
}
END_TEST

START_TEST(refusals_say_why) {
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_k_reduce_check(TN_BAND, TN_F32, &err), TN_EUNSUPPORTED);
    ck_assert_str_eq(err.msg, "BAND is not defined for float32: bitwise operations need an integer or bool dtype");
    ck_assert_int_eq(tn_k_reduce_check(TN_MAX, TN_C64, &err), TN_EUNSUPPORTED);
    ck_assert_str_eq(err.msg, "MAX is not defined for complex64: complex numbers have no order");
    ck_assert_int_eq(tn_k_reduce_check((tn_op)TN_OP_COUNT, TN_F32, &err), TN_EINVAL);
    ck_assert_str_eq(err.msg, "unknown reduction number 10");
    ck_assert_int_eq(tn_k_reduce_check(TN_SUM, (tn_dtype)TN_DTYPE_COUNT, &err), TN_EINVAL);
    ck_assert_str_eq(err.msg, "unknown dtype number 20");
    ck_assert(!tn_k_reduce_supported((tn_op)-1, TN_F32));
    ck_assert(!tn_k_reduce_supported(TN_SUM, (tn_dtype)-1));
    ck_assert_str_eq(tn_op_name((tn_op)TN_OP_COUNT), "?");
}
END_TEST

START_TEST(environment_chooses) {
    ck_assert_int_eq(setenv("TN_CPU", "scalar", 1), 0);
    ck_assert_str_eq(tn_k_variant(), "scalar");
}
END_TEST

START_TEST(unknown_choices_are_not_followed) {
    tn_err err = TN_ERR_INIT;
    const char *v;

    ck_assert_int_eq(setenv("TN_CPU", "mmx", 1), 0);
    v = tn_k_variant(); /* warns, and takes the best */
    ck_assert_str_ne(v, "mmx");
    ck_assert_str_ne(v, "scalar");
    ck_assert_int_eq(tn_k_force("mmx", &err), TN_EUNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.msg, "\"mmx\""));
    ck_assert_int_eq(tn_k_force("", NULL), TN_EUNSUPPORTED);
    ck_assert_str_eq(tn_k_variant(), v);
}
END_TEST

/* ---- integers and bool --------------------------------------------------------------------------------------- */

START_TEST(integers) {
    const int32_t a[] = {1, -7, INT32_MAX, 12}, b[] = {10, -8, 1, 10}, c[] = {100, 3, 5, 6};
    int32_t y[4];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_I32, y, NULL, a, b, c);
    SAME(y, ((int32_t[]){111, -12, INT32_MIN + 5, 28}));
    REDUCE(TN_AVG, TN_I32, y, NULL, a, b, c); /* of the wrapped sum, towards zero */
    SAME(y, ((int32_t[]){37, -4, (INT32_MIN + 5) / 3, 9}));
    REDUCE(TN_AVG, TN_I32, y, NULL, a, b);
    SAME(y, ((int32_t[]){5, -7, INT32_MIN / 2, 11}));
    REDUCE(TN_PRODUCT, TN_I32, y, NULL, a, b, c);
    SAME(y, ((int32_t[]){1000, 168, INT32_MAX - 4, 720})); /* 5 (2^31 - 1) = 2^31 - 5 modulo 2^32 */
    REDUCE(TN_MIN, TN_I32, y, NULL, a, b, c);
    SAME(y, ((int32_t[]){1, -8, 1, 6}));
    REDUCE(TN_MAX, TN_I32, y, NULL, a, b, c);
    SAME(y, ((int32_t[]){100, 3, INT32_MAX, 12}));
    REDUCE(TN_BAND, TN_I32, y, NULL, a, b);
    SAME(y, ((int32_t[]){0, -8, 1, 8}));
    REDUCE(TN_BOR, TN_I32, y, NULL, a, b);
    SAME(y, ((int32_t[]){11, -7, INT32_MAX, 14}));
    REDUCE(TN_BXOR, TN_I32, y, NULL, a, b);
    SAME(y, ((int32_t[]){11, 1, INT32_MAX - 1, 6}));
    tn_k_sub(TN_I32, y, a, b, 4);
    SAME(y, ((int32_t[]){-9, 1, INT32_MAX - 1, 2}));
    tn_k_add(TN_I32, y, a, b, 4);
    SAME(y, ((int32_t[]){11, -15, INT32_MIN, 22}));
}
END_TEST

START_TEST(integers_of_every_width_wrap) {
    uint8_t y8[2];
    int8_t yi8[2];
    uint16_t y16[1];
    int16_t yi16[1];
    uint32_t y32[1];
    uint64_t y64[2];
    int64_t yi64[2];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_U8, y8, NULL, ((uint8_t[]){250, 1}), ((uint8_t[]){10, 2}));
    SAME(y8, ((uint8_t[]){4, 3}));
    REDUCE(TN_PRODUCT, TN_I8, yi8, NULL, ((int8_t[]){-100, 16}), ((int8_t[]){2, 8}));
    SAME(yi8, ((int8_t[]){56, -128}));
    REDUCE(TN_MAX, TN_U8, y8, NULL, ((uint8_t[]){200, 1}), ((uint8_t[]){100, 2}));
    SAME(y8, ((uint8_t[]){200, 2}));
    REDUCE(TN_MAX, TN_I8, yi8, NULL, ((int8_t[]){-56, 1}), ((int8_t[]){100, 2}));
    SAME(yi8, ((int8_t[]){100, 2}));
    REDUCE(TN_PRODUCT, TN_U16, y16, NULL, ((uint16_t[]){65535}), ((uint16_t[]){65535}));
    SAME(y16, ((uint16_t[]){1}));
    REDUCE(TN_MIN, TN_I16, yi16, NULL, ((int16_t[]){5}), ((int16_t[]){-30000}));
    SAME(yi16, ((int16_t[]){-30000}));
    REDUCE(TN_AVG, TN_U32, y32, NULL, ((uint32_t[]){4000000000U}), ((uint32_t[]){200000000U}));
    SAME(y32, ((uint32_t[]){2100000000U}));
    REDUCE(TN_SUM, TN_U64, y64, NULL, ((uint64_t[]){UINT64_MAX, 7}), ((uint64_t[]){3, 1}));
    SAME(y64, ((uint64_t[]){2, 8}));
    REDUCE(TN_MAX, TN_U64, y64, NULL, ((uint64_t[]){UINT64_MAX, 7}), ((uint64_t[]){3, 9}));
    SAME(y64, ((uint64_t[]){UINT64_MAX, 9}));
    REDUCE(TN_MIN, TN_I64, yi64, NULL, ((int64_t[]){-1, 7}), ((int64_t[]){3, INT64_MIN}));
    SAME(yi64, ((int64_t[]){-1, INT64_MIN}));
    REDUCE(TN_AVG, TN_I64, yi64, NULL, ((int64_t[]){INT64_MIN, -9}));
    SAME(yi64, ((int64_t[]){INT64_MIN, -9}));
}
END_TEST

START_TEST(bools_are_truth_values) {
    const uint8_t a[] = {0, 0, 1, 2, 0x80}, b[] = {0, 1, 0, 4, 0x7f};
    uint8_t y[5];

    if (!use(_i))
        return;
    for (int o = 0; o < TN_OP_COUNT; o++) {
        tn_op op = (tn_op)o;

        if (!tn_k_reduce_supported(op, TN_BOOL))
            continue;
        REDUCE(op, TN_BOOL, y, NULL, a, b);
        if (op == TN_SUM || op == TN_MAX || op == TN_BOR)
            SAME(y, ((uint8_t[]){0, 1, 1, 1, 1}));
        else if (op == TN_BXOR)
            SAME(y, ((uint8_t[]){0, 1, 1, 0, 0}));
        else
            SAME(y, ((uint8_t[]){0, 0, 0, 1, 1}));
        REDUCE(op, TN_BOOL, y, NULL, a);
        SAME(y, ((uint8_t[]){0, 0, 1, 1, 1}));
    }
}
END_TEST

/* ---- real numbers -------------------------------------------------------------------------------------------- */

START_TEST(float32) {
    const float a[] = {1.5F, -2, 1e30F, 16777216}, b[] = {0.25F, 7, -1e30F, 1}, c[] = {4, 0.5F, 3, 1};
    float y[4];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_F32, y, NULL, a, b, c); /* in the order given: 2^24 + 1 + 1 stays 2^24 */
    SAME(y, ((float[]){5.75F, 5.5F, 3, 16777216}));
    REDUCE(TN_SUM, TN_F32, y, NULL, b, c, a);
    SAME(y, ((float[]){5.75F, 5.5F, 0, 16777218}));
    REDUCE(TN_AVG, TN_F32, y, NULL, a, b, c);
    SAME(y, ((float[]){5.75F / 3, 5.5F / 3, 1, 16777216 / 3.0F}));
    REDUCE(TN_PRODUCT, TN_F32, y, NULL, a, b, c);
    SAME(y, ((float[]){1.5F, -7, -INFINITY, 16777216}));
    REDUCE(TN_MIN, TN_F32, y, NULL, a, b, c);
    SAME(y, ((float[]){0.25F, -2, -1e30F, 1}));
    REDUCE(TN_MAX, TN_F32, y, NULL, a, b, c);
    SAME(y, ((float[]){4, 7, 1e30F, 16777216}));
    REDUCE(TN_PREMUL_SUM, TN_F32, y, ((double[]){2, -1, 0.5}), a, b, c);
    SAME(y, ((float[]){4.75F, -10.75F, 2 * 1e30F + 1e30F, 33554432}));
    tn_k_sub(TN_F32, y, a, b, 4);
    SAME(y, ((float[]){1.25F, -9, 2e30F, 16777215}));
    tn_k_scale(TN_F32, y, a, -0.5, 4);
    SAME(y, ((float[]){-0.75F, 1, -5e29F, -8388608}));
}
END_TEST

START_TEST(float64_is_not_float32) {
    const double a[] = {1, 1e300}, b[] = {0x1p-40, 1e300};
    double y[2];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_F64, y, NULL, a, b);
    SAME(y, ((double[]){1 + 0x1p-40, 2e300}));
    REDUCE(TN_WMEAN, TN_F64, y, ((double[]){1, 3}), a, b);
    SAME(y, ((double[]){(1 + 3 * 0x1p-40) / 4, 1e300}));
    REDUCE(TN_PREMUL_SUM, TN_F64, y, ((double[]){0.1, 1}), a, b);
    SAME(y, ((double[]){0.1 + 0x1p-40, 1.1e300}));
}
END_TEST

START_TEST(nan_is_handed_on) {
    const uint32_t nan_neg = 0xffc00123, nan_want = 0x7fc00000;
    float n, zero[2] = {0, -0.0F}, minus[2] = {-0.0F, 0}, y1[1], y2[2];
    const float one[] = {1};

    if (!use(_i))
        return;
    memcpy(&n, &nan_neg, sizeof(n));
    for (int o = 0; o < TN_OP_COUNT; o++) {
        tn_op op = (tn_op)o;

        if (!tn_k_reduce_supported(op, TN_F32))
            continue;
        REDUCE(op, TN_F32, y1, ((double[]){1, 1}), &n, one);
        ck_assert_mem_eq(y1, &nan_want, 4);
        REDUCE(op, TN_F32, y1, ((double[]){1, 1}), one, &n);
        ck_assert_mem_eq(y1, &nan_want, 4);
        REDUCE(op, TN_F32, y1, ((double[]){1}), &n);
        ck_assert_mem_eq(y1, &nan_want, 4);
    }
    REDUCE(TN_SUM, TN_F32, y1, NULL, ((float[]){INFINITY}), ((float[]){-INFINITY}));
    ck_assert_mem_eq(y1, &nan_want, 4);
    REDUCE(TN_MIN, TN_F32, y2, NULL, zero, minus); /* of equals the first */
    SAME(y2, zero);
    REDUCE(TN_MAX, TN_F32, y2, NULL, minus, zero);
    SAME(y2, minus);
}
END_TEST

START_TEST(minus_zero_survives) {
    const float z[] = {-0.0F};
    float y[1];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_F32, y, NULL, z);
    SAME(y, z);
    REDUCE(TN_SUM, TN_F32, y, NULL, z, z, z, z, z, z);
    SAME(y, z);
    REDUCE(TN_WMEAN, TN_F32, y, ((double[]){2, 1}), z, z);
    SAME(y, z);
    REDUCE(TN_PREMUL_SUM, TN_F32, y, ((double[]){2, 1}), z, z);
    SAME(y, z);
}
END_TEST

START_TEST(weighted_mean) {
    const float a[] = {1, 10}, b[] = {2, 20}, c[] = {4, 40}, nan[] = {NAN, INFINITY};
    const float big[] = {1e8F}, one[] = {1}, low[] = {-1e8F};
    float y[2], y1[1];

    if (!use(_i))
        return;
    REDUCE(TN_WMEAN, TN_F32, y, ((double[]){1, 2, 5}), a, b, c);
    SAME(y, ((float[]){25 / 8.0F, 250 / 8.0F}));
    REDUCE(TN_WMEAN, TN_F32, y, ((double[]){0, 1, 0, 2, 5, 0}), nan, a, nan, b, c, nan);
    SAME(y, ((float[]){25 / 8.0F, 250 / 8.0F}));
    REDUCE(TN_WMEAN, TN_F32, y, ((double[]){1, 2, 5, 1, 1, 0, 4, 5, 0.5}), a, b, c, a, a, nan, c, b, c);
    SAME(y, ((float[]){(float)(55 / 19.5), (float)(550 / 19.5)}));
    REDUCE(TN_WMEAN, TN_F32, y1, ((double[]){1, 1, 1}), big, one, low); /* float32 would lose the 1 */
    SAME(y1, ((float[]){1 / 3.0F}));
    REDUCE(TN_WMEAN, TN_F32, y1, ((double[]){1e-300, 0}), one, nan);
    SAME(y1, one);
    /* no overflow on the way */
    REDUCE(TN_WMEAN, TN_F32, y1, ((double[]){3, 1}), ((float[]){3e38F}), ((float[]){3e38F}));
    SAME(y1, ((float[]){3e38F}));
}
END_TEST

START_TEST(premul_does_not_skip) {
    float y[1];

    if (!use(_i))
        return;
    REDUCE(TN_PREMUL_SUM, TN_F32, y, ((double[]){0, 1}), ((float[]){INFINITY}), ((float[]){1}));
    ck_assert(isnan(y[0]));
    /* the factors are float32, too */
    REDUCE(TN_PREMUL_SUM, TN_F32, y, ((double[]){0.1, 0.1}), ((float[]){3}), ((float[]){7}));
    SAME(y, ((float[]){0.1F * 3 + 0.1F * 7}));
}
END_TEST

START_TEST(complex_numbers) {
    const float a[] = {1, 2, INFINITY, 0}, b[] = {3, -4, 1, 0}, c[] = {0, 1, 2, 5};
    const double d[] = {1, 2}, e[] = {3, -4};
    float y[4];
    double z[2];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_C64, y, NULL, a, b, c);
    SAME(y, ((float[]){4, -1, INFINITY, 5}));
    REDUCE(TN_AVG, TN_C64, y, NULL, a, b);
    SAME(y, ((float[]){2, -1, INFINITY, 0}));
    REDUCE(TN_PRODUCT, TN_C64, y, NULL, a, b, c); /* (11 + 2i) i; Inf * 0 is NaN in both parts */
    ck_assert_mem_eq(y, ((float[]){-2, 11}), 8);
    ck_assert_mem_eq(y + 2, ((uint32_t[]){0x7fc00000, 0x7fc00000}), 8);
    REDUCE(TN_WMEAN, TN_C64, y, ((double[]){1, 3}), b, c);
    SAME(y, ((float[]){0.75F, -0.25F, 1.75F, 3.75F}));
    REDUCE(TN_PRODUCT, TN_C128, z, NULL, d, e);
    SAME(z, ((double[]){11, 2}));
    tn_k_scale(TN_C128, z, d, -2, 1);
    SAME(z, ((double[]){-2, -4}));
    tn_k_sub(TN_C128, z, d, e, 1);
    SAME(z, ((double[]){-2, 6}));
}
END_TEST

/* ---- 16 and 8 bits ------------------------------------------------------------------------------------------- */

START_TEST(small_floats_round_once) {
    const uint16_t one = 0x3f80, half_ulp = 0x3b80; /* bfloat16: 1 and 2^-8 */
    const uint16_t m4 = 0x4080, m2 = 0x3c80, m29 = 0x3100; /* 4, 2^-6, 2^-29 */
    uint16_t y[1], step[1];
    uint8_t y8[1];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_BF16, step, NULL, &one, &half_ulp); /* a tie goes to the even 1 */
    SAME(step, ((uint16_t[]){0x3f80}));
    REDUCE(TN_SUM, TN_BF16, step, NULL, step, &half_ulp);
    SAME(step, ((uint16_t[]){0x3f80}));
    REDUCE(TN_SUM, TN_BF16, y, NULL, &one, &half_ulp, &half_ulp); /* three at once do not lose anything */
    SAME(y, ((uint16_t[]){0x3f81}));
    /* (4 + 2^-6 + 2 * 2^-29) / 4 = 1 + 2^-8 + 2^-30: just above a tie, and a tie if float32 came between. */
    REDUCE(TN_WMEAN, TN_BF16, y, ((double[]){1, 1, 2}), &m4, &m2, &m29);
    SAME(y, ((uint16_t[]){0x3f81}));
    REDUCE(TN_WMEAN, TN_BF16, y, ((double[]){1, 3}), ((uint16_t[]){0x7f7f}), ((uint16_t[]){0x7f7f}));
    SAME(y, ((uint16_t[]){0x7f7f}));
    /* Of the smallest subnormal: a half is a tie, three quarters are nearer to it, 2^-40 is below any float32. */
    REDUCE(TN_WMEAN, TN_BF16, y, ((double[]){1, 1}), ((uint16_t[]){1}), ((uint16_t[]){0}));
    SAME(y, ((uint16_t[]){0}));
    REDUCE(TN_WMEAN, TN_BF16, y, ((double[]){3, 1}), ((uint16_t[]){1}), ((uint16_t[]){0}));
    SAME(y, ((uint16_t[]){1}));
    REDUCE(TN_WMEAN, TN_BF16, y, ((double[]){1, 0x1p40}), ((uint16_t[]){0x8001}), ((uint16_t[]){0}));
    SAME(y, ((uint16_t[]){0x8000}));
    /* 2 + 1/16 + 1/16 = 2.125 is a tie between 2 and 2.25; with a third 1/16 it is nearer to 2.25. */
    REDUCE(TN_SUM, TN_F8_E4M3, y8, NULL, ((uint8_t[]){0x40}), ((uint8_t[]){0x18}), ((uint8_t[]){0x18}));
    SAME(y8, ((uint8_t[]){0x40}));
    REDUCE(TN_SUM, TN_F8_E4M3, y8, NULL, ((uint8_t[]){0x40}), ((uint8_t[]){0x18}), ((uint8_t[]){0x18}),
           ((uint8_t[]){0x18}));
    SAME(y8, ((uint8_t[]){0x41}));
    REDUCE(TN_AVG, TN_F8_E4M3, y8, NULL, ((uint8_t[]){0x7e}), ((uint8_t[]){0x7e})); /* 448 + 448 fits float32 */
    SAME(y8, ((uint8_t[]){0x7e}));
}
END_TEST

START_TEST(small_floats_overflow_as_torch) {
    uint16_t y[2];
    uint8_t z[3];

    if (!use(_i))
        return;
    REDUCE(TN_SUM, TN_F16, y, NULL, ((uint16_t[]){0x7bff, 0xfbff}), ((uint16_t[]){0x7bff, 0xfbff}));
    SAME(y, ((uint16_t[]){0x7c00, 0xfc00}));
    REDUCE(TN_SUM, TN_BF16, y, NULL, ((uint16_t[]){0x7f7f, 0xff7f}), ((uint16_t[]){0x7f7f, 0xff7f}));
    SAME(y, ((uint16_t[]){0x7f80, 0xff80}));
    /* No Inf: torch saturates, and gives NaN in the fnuz formats. */
    REDUCE(TN_SUM, TN_F8_E4M3, z, NULL, ((uint8_t[]){0x7e, 0xfe, 0x7e}), ((uint8_t[]){0x7e, 0xfe, 0x58}));
    SAME(z, ((uint8_t[]){0x7e, 0xfe, 0x7e}));
    REDUCE(TN_SUM, TN_F8_E5M2, z, NULL, ((uint8_t[]){0x7b, 0xfb, 0x7c}), ((uint8_t[]){0x7b, 0xfb, 0xfc}));
    SAME(z, ((uint8_t[]){0x7c, 0xfc, 0x7f}));
    REDUCE(TN_SUM, TN_F8_E4M3FNUZ, z, NULL, ((uint8_t[]){0x7f, 0xff, 0x08}), ((uint8_t[]){0x7f, 0xff, 0x88}));
    SAME(z, ((uint8_t[]){0x80, 0x80, 0}));
    REDUCE(TN_PRODUCT, TN_F8_E5M2FNUZ, z, NULL, ((uint8_t[]){0x7f, 0x01, 0x40}), ((uint8_t[]){0xff, 0x81, 0xc0}));
    SAME(z, ((uint8_t[]){0x80, 0, 0xc0})); /* an underflow has no sign; 1 * -1 */
}
END_TEST

START_TEST(e8m0_has_an_order) {
    const uint8_t a[] = {0, 127, 254, 255, 1}, b[] = {1, 126, 255, 255, 1};
    uint8_t y[5];

    if (!use(_i))
        return;
    REDUCE(TN_MIN, TN_F8_E8M0, y, NULL, a, b);
    SAME(y, ((uint8_t[]){0, 126, 255, 255, 1}));
    REDUCE(TN_MAX, TN_F8_E8M0, y, NULL, a, b);
    SAME(y, ((uint8_t[]){1, 127, 255, 255, 1}));
    ck_assert_double_eq(tn_k_sumsq(TN_F8_E8M0, ((uint8_t[]){127, 128, 0}), 3), 5 + 0x1p-254);
}
END_TEST

static uint64_t fnv(uint64_t h, uint64_t v) {
    return (h ^ v) * 0x100000001b3;
}

/* Every code of every format, against torch: tests/golden/kernels.py prints this table and says which pairs. */
START_TEST(small_floats_agree_with_torch) {
    static const struct {
        tn_dtype dtype;
        uint64_t sum, product;
    } golden[] = {
        {TN_F16, 0xfa44f3a481ffc169, 0xd85540e58ba5d6b1},
        {TN_BF16, 0xbe1b02737e3541e1, 0xa50a5bc6f1814b99},
        {TN_F8_E4M3, 0x318ca48439886f11, 0xeb8033bcda7fb14d},
        {TN_F8_E5M2, 0xf1df54d2ce2230d5, 0x46f1c008e6d8b03d},
        {TN_F8_E4M3FNUZ, 0x50b112fcfb94b295, 0xb08ba15eac043375},
        {TN_F8_E5M2FNUZ, 0x794faa5cbf849111, 0x7cc860cce166e3a5},
    };
    static uint16_t a[65536], b[65536], y[65536]; /* of uint8_t for the formats of 8 bits */

    if (!use(_i))
        return;
    for (size_t g = 0; g < sizeof(golden) / sizeof(golden[0]); g++) {
        bool wide = tn_dtype_size(golden[g].dtype) == 2;
        const void *const src[] = {a, b};

        for (uint32_t i = 0; i < 65536; i++) {
            if (wide) {
                a[i] = (uint16_t)i;
                b[i] = (uint16_t)(40503 * i + 12345);
            } else {
                ((uint8_t *)a)[i] = (uint8_t)i;
                ((uint8_t *)b)[i] = (uint8_t)(i >> 8);
            }
        }
        for (int product = 0; product <= 1; product++) {
            uint64_t h = 0xcbf29ce484222325;

            tn_k_reduce(product ? TN_PRODUCT : TN_SUM, golden[g].dtype, y, src, NULL, 2, 65536);
            for (size_t i = 0; i < 65536; i++)
                h = fnv(h, wide ? y[i] : ((const uint8_t *)y)[i]);
            ck_assert_msg(h == (product ? golden[g].product : golden[g].sum), "%s %s: %016llx",
                          tn_dtype_name(golden[g].dtype), product ? "PRODUCT" : "SUM", (unsigned long long)h);
        }
    }
}
END_TEST

/* ---- questions ----------------------------------------------------------------------------------------------- */

START_TEST(first_nonfinite) {
    static const struct {
        tn_dtype dtype;
        uint64_t finite, bad[4]; /* codes of one number; the largest finite one */
    } cases[] = {
        {TN_F16, 0xfbff, {0x7c00, 0xfc00, 0x7e00, 0xfc01}},
        {TN_BF16, 0x7f7f, {0x7f80, 0xff80, 0x7fc0, 0x7f81}},
        {TN_F32, 0xff7fffff, {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}},
        {TN_F64,
         0x7fefffffffffffff,
         {0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0x7ff0000000000001}},
        {TN_F8_E4M3, 0xfe, {0x7f, 0xff, 0x7f, 0xff}},
        {TN_F8_E5M2, 0x7b, {0x7c, 0xfc, 0x7d, 0xff}},
        {TN_F8_E4M3FNUZ, 0xff, {0x80, 0x80, 0x80, 0x80}},
        {TN_F8_E5M2FNUZ, 0x7f, {0x80, 0x80, 0x80, 0x80}},
        {TN_F8_E8M0, 0xfe, {0xff, 0xff, 0xff, 0xff}},
        {TN_C64, 0xff7fffff, {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}},
        {TN_C128,
         0xffefffffffffffff,
         {0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0x7ff0000000000001}},
    };
    static const size_t at[] = {0, 1, 63, 1023, 1024, 2998, 2999};
    static uint64_t room[6000];
    uint8_t *p = (uint8_t *)room;

    if (!use(_i))
        return;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        tn_dtype d = cases[c].dtype;
        size_t parts = tn_dtype_is_complex(d) ? 2 : 1, es = tn_dtype_size(d) / parts;

        for (size_t i = 0; i < 3000 * parts; i++) /* the host is little-endian, as the formats on the wire */
            memcpy(p + i * es, &cases[c].finite, es);
        ck_assert_uint_eq(tn_k_first_nonfinite(d, p, 0), 0);
        ck_assert_uint_eq(tn_k_first_nonfinite(d, p, 3000), 3000);
        for (size_t j = sizeof(at) / sizeof(at[0]); j-- > 0;) { /* from the end: always the first counts */
            for (size_t b = 0; b < 4; b++) {
                memcpy(p + (at[j] * parts + b % parts) * es, &cases[c].bad[b], es);
                ck_assert_msg(tn_k_first_nonfinite(d, p, 3000) == at[j], "%s %zu", tn_dtype_name(d), at[j]);
                ck_assert_uint_eq(tn_k_first_nonfinite(d, p, at[j]), at[j]);
                if (b < 3) /* each code by itself */
                    memcpy(p + (at[j] * parts + b % parts) * es, &cases[c].finite, es);
            }
        }
    }
    memset(p, 0xff, sizeof(room));
    ck_assert_uint_eq(tn_k_first_nonfinite(TN_I32, p, 100), 100);
    ck_assert_uint_eq(tn_k_first_nonfinite(TN_BOOL, p, 100), 100);
}
END_TEST

START_TEST(sum_of_squares) {
    static float x[1000];
    const float big[] = {1e30F, -1e30F}, inf[] = {1, -INFINITY};
    const uint64_t nan_want = 0x7ff8000000000000;
    const float nan[] = {1, -NAN};
    double s;

    if (!use(_i))
        return;
    for (int i = 0; i < 1000; i++)
        x[i] = (float)(i + 1);
    ck_assert_double_eq(tn_k_sumsq(TN_F32, x, 1000), 333833500.0);
    ck_assert_double_eq(tn_k_sumsq(TN_F32, x, 2), 5);
    ck_assert_double_eq(tn_k_sumsq(TN_C64, x, 500), 333833500.0);
    ck_assert_double_eq(tn_k_sumsq(TN_F32, x, 0), 0);
    ck_assert_double_eq(tn_k_sumsq(TN_F64, ((double[]){3, 4, 0x1p-20}), 3), 25 + 0x1p-40);
    ck_assert_double_eq(tn_k_sumsq(TN_BF16, ((uint16_t[]){0x4040, 0x4080}), 2), 25);
    ck_assert_double_eq_tol(tn_k_sumsq(TN_F32, big, 2), 2e60, 1e54); /* over the range of float32 */
    ck_assert_double_eq(tn_k_sumsq(TN_F32, inf, 2), (double)INFINITY);
    s = tn_k_sumsq(TN_F32, nan, 2);
    ck_assert_mem_eq(&s, &nan_want, sizeof(s));
}
END_TEST

int main(void) {
    Suite *s = suite_create("kernels");
    TCase *once = tcase_create("definitions"), *tc = tcase_create("numbers");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, once);
    suite_add_tcase(s, tc);
    tcase_add_test(once, ops_and_dtypes);
    tcase_add_test(once, refusals_say_why);
    tcase_add_test(once, environment_chooses);
    tcase_add_test(once, unknown_choices_are_not_followed);
    tcase_add_loop_test(tc, integers, 0, VARIANTS);
    tcase_add_loop_test(tc, integers_of_every_width_wrap, 0, VARIANTS);
    tcase_add_loop_test(tc, bools_are_truth_values, 0, VARIANTS);
    tcase_add_loop_test(tc, float32, 0, VARIANTS);
    tcase_add_loop_test(tc, float64_is_not_float32, 0, VARIANTS);
    tcase_add_loop_test(tc, nan_is_handed_on, 0, VARIANTS);
    tcase_add_loop_test(tc, minus_zero_survives, 0, VARIANTS);
    tcase_add_loop_test(tc, weighted_mean, 0, VARIANTS);
    tcase_add_loop_test(tc, premul_does_not_skip, 0, VARIANTS);
    tcase_add_loop_test(tc, complex_numbers, 0, VARIANTS);
    tcase_add_loop_test(tc, small_floats_round_once, 0, VARIANTS);
    tcase_add_loop_test(tc, small_floats_overflow_as_torch, 0, VARIANTS);
    tcase_add_loop_test(tc, e8m0_has_an_order, 0, VARIANTS);
    tcase_add_loop_test(tc, small_floats_agree_with_torch, 0, VARIANTS);
    tcase_add_loop_test(tc, first_nonfinite, 0, VARIANTS);
    tcase_add_loop_test(tc, sum_of_squares, 0, VARIANTS);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

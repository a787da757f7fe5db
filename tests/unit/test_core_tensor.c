/* Tensor views: facts about dtypes, checks at construction, copies between strided and packed memory. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "core/tensor.h"

/* The values are part of the wire protocol and of the Python binding. */
START_TEST(dtypes_keep_their_values) {
    static const struct {
        const char *torch_name, *st_name;
        size_t size;
        char kind; /* i, f or c */
    } want[] = {
        {"bool", "BOOL", 1, 'i'},          {"uint8", "U8", 1, 'i'},
        {"int8", "I8", 1, 'i'},            {"int16", "I16", 2, 'i'},
        {"int32", "I32", 4, 'i'},          {"int64", "I64", 8, 'i'},
        {"uint16", "U16", 2, 'i'},         {"uint32", "U32", 4, 'i'},
        {"uint64", "U64", 8, 'i'},         {"float16", "F16", 2, 'f'},
        {"bfloat16", "BF16", 2, 'f'},      {"float32", "F32", 4, 'f'},
        {"float64", "F64", 8, 'f'},        {"complex64", "C64", 8, 'c'},
        {"complex128", "", 16, 'c'},       {"float8_e4m3fn", "F8_E4M3", 1, 'f'},
        {"float8_e5m2", "F8_E5M2", 1, 'f'}, {"float8_e4m3fnuz", "", 1, 'f'},
        {"float8_e5m2fnuz", "", 1, 'f'},   {"float8_e8m0fnu", "F8_E8M0", 1, 'f'},
    };

    ck_assert_uint_eq(sizeof(want) / sizeof(want[0]), TN_DTYPE_COUNT);
    for (int i = 0; i < TN_DTYPE_COUNT; i++) {
        tn_dtype d = (tn_dtype)i, back;

        ck_assert(tn_dtype_valid(i));
        ck_assert_str_eq(tn_dtype_name(d), want[i].torch_name);
        ck_assert_str_eq(tn_dtype_safetensors(d), want[i].st_name);
        ck_assert_uint_eq(tn_dtype_size(d), want[i].size);
        ck_assert_int_eq(tn_dtype_is_integer(d), want[i].kind == 'i');
        ck_assert_int_eq(tn_dtype_is_float(d), want[i].kind == 'f');
        ck_assert_int_eq(tn_dtype_is_complex(d), want[i].kind == 'c');
        ck_assert(tn_dtype_parse(want[i].torch_name, &back) && back == d);
        if (want[i].st_name[0] != '\0')
            ck_assert(tn_dtype_parse(want[i].st_name, &back) && back == d);
    }
    ck_assert(!tn_dtype_valid(-1));
    ck_assert(!tn_dtype_valid(TN_DTYPE_COUNT));
}
END_TEST

START_TEST(unknown_dtype_names_are_refused) {
    static const char *const names[] = {"", "float", "f32", "F4", "torch.float32", "float32 "};
    tn_dtype d;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        ck_assert_msg(!tn_dtype_parse(names[i], &d), "%s", names[i]);
}
END_TEST

START_TEST(init_gives_row_major_strides) {
    static const int64_t shape[] = {2, 0, 3, 1}, full[] = {2, 5, 3, 1};
    tn_tensor t;
    char text[64];

    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F32, 4, full, NULL), TN_OK);
    ck_assert_int_eq(t.stride[0], 15);
    ck_assert_int_eq(t.stride[1], 3);
    ck_assert_int_eq(t.stride[2], 1);
    ck_assert_int_eq(t.stride[3], 1);
    ck_assert_int_eq(tn_tensor_numel(&t), 30);
    ck_assert_uint_eq(tn_tensor_nbytes(&t), 120);
    ck_assert(tn_tensor_contiguous(&t));
    ck_assert_str_eq(tn_tensor_describe(&t, text, sizeof(text)), "float32[2, 5, 3, 1]");
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F32, 4, shape, NULL), TN_OK);
    ck_assert_int_eq(tn_tensor_numel(&t), 0);
    ck_assert(tn_tensor_contiguous(&t));
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_BOOL, 0, NULL, NULL), TN_OK);
    ck_assert_int_eq(tn_tensor_numel(&t), 1);
    ck_assert_str_eq(tn_tensor_describe(&t, text, sizeof(text)), "bool[]");
}
END_TEST

START_TEST(init_refuses_what_is_no_tensor) {
    static const int64_t negative[] = {3, -1}, huge[] = {INT64_MAX, 2}, zero_huge[] = {0, INT64_MAX, INT64_MAX};
    static const int64_t limit[] = {INT64_MAX / 4};
    int64_t many[TN_MAX_DIMS + 1];
    tn_tensor t;
    tn_err e = TN_ERR_INIT;

    for (int i = 0; i <= TN_MAX_DIMS; i++)
        many[i] = 1;
    ck_assert_int_eq(tn_tensor_init(&t, NULL, -1, 0, NULL, &e), TN_EINVAL);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_DTYPE_COUNT, 0, NULL, &e), TN_EINVAL);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F32, -1, NULL, &e), TN_EINVAL);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F32, TN_MAX_DIMS + 1, many, &e), TN_EINVAL);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F32, TN_MAX_DIMS, many, &e), TN_OK);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F32, 2, negative, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "dimension 1 has the negative size -1");
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_U8, 2, huge, &e), TN_EINVAL);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_U8, 3, zero_huge, &e), TN_EINVAL);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F32, 1, limit, &e), TN_OK);
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F64, 1, limit, &e), TN_EINVAL);
}
END_TEST

START_TEST(contiguity) {
    static const int64_t shape[] = {2, 3}, column[] = {1, 2}, row[] = {3, 1}, wide[] = {4, 1};
    static const int64_t one[] = {1, 3}, any_first[] = {99, 1};
    tn_tensor t;

    tn_tensor_init_strided(&t, NULL, TN_F32, 2, shape, row, NULL);
    ck_assert(tn_tensor_contiguous(&t));
    tn_tensor_init_strided(&t, NULL, TN_F32, 2, shape, column, NULL);
    ck_assert(!tn_tensor_contiguous(&t));
    tn_tensor_init_strided(&t, NULL, TN_F32, 2, shape, wide, NULL);
    ck_assert(!tn_tensor_contiguous(&t));
    tn_tensor_init_strided(&t, NULL, TN_F32, 2, one, any_first, NULL); /* a dimension of one: its stride is idle */
    ck_assert(tn_tensor_contiguous(&t));
}
END_TEST

/* Element at an index, the slow and obvious way. */
static const uint8_t *element(const tn_tensor *t, const int64_t *index) {
    int64_t at = 0;

    for (int i = 0; i < t->ndim; i++)
        at += index[i] * t->stride[i];
    return (const uint8_t *)t->data + at * (int64_t)tn_dtype_size(t->dtype);
}

static void check_packed(const tn_tensor *t, const uint8_t *packed) {
    size_t es = tn_dtype_size(t->dtype);
    int64_t n = tn_tensor_numel(t);

    for (int64_t k = 0; k < n; k++) {
        int64_t index[TN_MAX_DIMS] = {0}, rest = k;

        for (int i = t->ndim - 1; i >= 0; i--) {
            index[i] = rest % t->shape[i];
            rest /= t->shape[i];
        }
        ck_assert_mem_eq(element(t, index), packed + (size_t)k * es, es);
    }
}

/* Views that permute, step over, reverse and expand one buffer, for every element size. */
START_TEST(pack_and_unpack_agree_with_indexing) {
    static const tn_dtype sizes[] = {TN_U8, TN_F16, TN_F32, TN_F64, TN_C128};
    static uint8_t memory[16 * 4096], before[16 * 4096], packed[16 * 4096], again[16 * 4096];
    tn_rng rng = tn_rng_seed(7);

    for (int round = 0; round < 500; round++) {
        tn_dtype dtype = sizes[tn_rng_below(&rng, sizeof(sizes) / sizeof(sizes[0]))];
        int ndim = (int)tn_rng_below(&rng, 5);
        int64_t shape[5] = {0}, stride[5] = {0}, step = 1, start = 0;
        bool expanded = false;
        tn_tensor t;

        for (size_t i = 0; i < sizeof(memory); i++)
            memory[i] = (uint8_t)tn_rng_u64(&rng);
        for (int i = ndim - 1; i >= 0; i--) { /* from the inside, each dimension over all that lies further in */
            shape[i] = (int64_t)tn_rng_below(&rng, 5);
            stride[i] = step * (int64_t)(1 + tn_rng_below(&rng, 2));
            step = stride[i] * (shape[i] > 0 ? shape[i] : 1);
            if (tn_rng_below(&rng, 4) == 0 && shape[i] > 0) {
                start += stride[i] * (shape[i] - 1);
                stride[i] = -stride[i];
            } else if (tn_rng_below(&rng, 6) == 0) {
                stride[i] = 0;
                expanded = true;
            }
        }
        for (int i = ndim - 1; i > 0; i--) { /* and permuted */
            int j = (int)tn_rng_below(&rng, (uint64_t)i + 1);
            int64_t s = shape[i], d = stride[i];

            shape[i] = shape[j];
            stride[i] = stride[j];
            shape[j] = s;
            stride[j] = d;
        }
        ck_assert_int_le(step, 4096);
        start *= (int64_t)tn_dtype_size(dtype);
        ck_assert_int_eq(tn_tensor_init_strided(&t, memory + start, (int)dtype, ndim, shape, stride, NULL), TN_OK);
        tn_tensor_pack(&t, packed);
        check_packed(&t, packed);
        if (expanded)
            continue; /* writing would store several values in one place */
        memcpy(before, memory, sizeof(memory));
        for (size_t i = 0; i < tn_tensor_nbytes(&t); i++)
            packed[i] ^= 0xFF;
        tn_tensor_unpack(&t, packed);
        check_packed(&t, packed);
        tn_tensor_pack(&t, again);
        ck_assert(tn_tensor_nbytes(&t) == 0 || memcmp(again, packed, tn_tensor_nbytes(&t)) == 0);
        for (size_t i = 0; i < tn_tensor_nbytes(&t); i++) /* and nothing else was touched */
            packed[i] ^= 0xFF;
        tn_tensor_unpack(&t, packed);
        ck_assert_mem_eq(memory, before, sizeof(memory));
    }
}
END_TEST

START_TEST(describe_never_overruns) {
    int64_t shape[TN_MAX_DIMS];
    tn_tensor t;
    char text[512];

    for (int i = 0; i < TN_MAX_DIMS; i++)
        shape[i] = 10 + i;
    shape[0] = 1;
    shape[1] = 0;
    ck_assert_int_eq(tn_tensor_init(&t, NULL, TN_F8_E8M0, 10, shape, NULL), TN_OK);
    for (size_t cap = 1; cap < 100; cap++) {
        memset(text, '#', sizeof(text));
        tn_tensor_describe(&t, text, cap);
        ck_assert_uint_lt(strnlen(text, cap), cap);
        ck_assert_int_eq(text[cap], '#');
    }
    ck_assert_str_eq(text, "float8_e8m0fnu[1, 0, 12, 13, 14, 15, 16, 17, 18, 19]");
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/tensor");
    TCase *tc = tcase_create("tensor");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, dtypes_keep_their_values);
    tcase_add_test(tc, unknown_dtype_names_are_refused);
    tcase_add_test(tc, init_gives_row_major_strides);
    tcase_add_test(tc, init_refuses_what_is_no_tensor);
    tcase_add_test(tc, contiguity);
    tcase_add_test(tc, pack_and_unpack_agree_with_indexing);
    tcase_add_test(tc, describe_never_overruns);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

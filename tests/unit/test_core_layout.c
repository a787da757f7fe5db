/* Layouts: one order whatever the order of adding, limits, differences by name, and CBOR there and back. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/layout.h"
#include "core/random.h"

static void add(tn_layout *l, const char *name, tn_dtype dtype, int ndim, int64_t a, int64_t b) {
    int64_t shape[2] = {a, b};
    tn_err e = TN_ERR_INIT;

    ck_assert_msg(tn_layout_add(l, name, dtype, ndim, shape, &e) == TN_OK, "%s", e.msg);
}

static void add_entry(tn_layout *l, const tn_layout_entry *e) {
    ck_assert_int_eq(tn_layout_add(l, e->name, e->dtype, e->ndim, e->shape, NULL), TN_OK);
}

static tn_layout small(void) {
    tn_layout l;

    tn_layout_init(&l);
    add(&l, "z", TN_U8, 1, 3, 0);
    add(&l, "fc1.weight", TN_F32, 2, 10, 128);
    add(&l, "step", TN_I64, 0, 0, 0);
    add(&l, "fc1.bias", TN_F32, 1, 10, 0);
    add(&l, "empty", TN_F32, 2, 0, 4);
    add(&l, "half", TN_F16, 1, 5, 0);
    ck_assert_int_eq(tn_layout_seal(&l, NULL), TN_OK);
    return l;
}

START_TEST(sealing_orders_by_element_size_and_name) {
    static const struct {
        const char *name;
        size_t offset, nbytes;
    } want[] = {
        {"step", 0, 8},           {"empty", 8, 0},      {"fc1.bias", 8, 40},
        {"fc1.weight", 48, 5120}, {"half", 5168, 10}, {"z", 5178, 3},
    };
    tn_layout l = small();

    ck_assert_uint_eq(l.count, sizeof(want) / sizeof(want[0]));
    ck_assert_uint_eq(l.nbytes, 5181);
    for (size_t i = 0; i < l.count; i++) {
        ck_assert_str_eq(l.entry[i].name, want[i].name);
        ck_assert_uint_eq(l.entry[i].offset, want[i].offset);
        ck_assert_uint_eq(l.entry[i].nbytes, want[i].nbytes);
        ck_assert_uint_eq(l.entry[i].offset % tn_dtype_size(l.entry[i].dtype), 0);
        ck_assert_ptr_eq(tn_layout_find(&l, want[i].name), &l.entry[i]);
    }
    ck_assert_ptr_null(tn_layout_find(&l, "fc1"));
    ck_assert_ptr_null(tn_layout_find(&l, ""));
    tn_layout_release(&l);
    tn_layout_release(&l);
    ck_assert_ptr_null(tn_layout_find(&l, "z"));
}
END_TEST

START_TEST(views_lie_where_the_layout_says) {
    tn_layout l = small();
    uint8_t *block = malloc(l.nbytes);
    char text[64];

    for (size_t i = 0; i < l.count; i++) {
        tn_tensor t = tn_layout_tensor(&l, i, block);

        ck_assert_ptr_eq(t.data, block + l.entry[i].offset);
        ck_assert_uint_eq(tn_tensor_nbytes(&t), l.entry[i].nbytes);
        ck_assert(tn_tensor_contiguous(&t));
    }
    {
        tn_tensor t = tn_layout_tensor(&l, 3, block);

        ck_assert_str_eq(tn_tensor_describe(&t, text, sizeof(text)), "float32[10, 128]");
    }
    free(block);
    tn_layout_release(&l);
}
END_TEST

START_TEST(what_cannot_be_added) {
    static const int64_t one[] = {1}, negative[] = {-1}, most[] = {TN_LAYOUT_MAX_BYTES / 4},
                         more[] = {TN_LAYOUT_MAX_BYTES / 4 + 1};
    char name[TN_LAYOUT_MAX_NAME + 2];
    tn_layout l;
    tn_err e = TN_ERR_INIT;

    tn_layout_init(&l);
    memset(name, 'n', sizeof(name));
    name[TN_LAYOUT_MAX_NAME + 1] = '\0';
    ck_assert_int_eq(tn_layout_add(&l, name, TN_F32, 1, one, &e), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, "513 bytes; at most 512"));
    ck_assert_int_eq(tn_layout_add(&l, "", TN_F32, 1, one, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "a tensor with an empty name");
    ck_assert_int_eq(tn_layout_add(&l, "caf\xe9", TN_F32, 1, one, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "a tensor name that is not UTF-8");
    ck_assert_int_eq(tn_layout_add(&l, "c", TN_C128, 1, one, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "tensor c is complex128, which .safetensors files cannot hold");
    ck_assert_int_eq(tn_layout_add(&l, "c", (tn_dtype)99, 1, one, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "tensor c: unknown dtype number 99");
    ck_assert_int_eq(tn_layout_add(&l, "c", TN_F32, 1, negative, &e), TN_EINVAL);
    ck_assert_int_eq(tn_layout_add(&l, "c", TN_F32, 17, one, &e), TN_EINVAL);
    ck_assert_int_eq(tn_layout_add(&l, "c", TN_F32, 1, more, &e), TN_ETOOBIG);
    ck_assert_str_eq(e.msg, "tensor c: a model has at most 2^40 bytes");
    ck_assert_uint_eq(l.count, 0);
    ck_assert_uint_eq(l.nbytes, 0);
    name[TN_LAYOUT_MAX_NAME] = '\0';
    ck_assert_int_eq(tn_layout_add(&l, name, TN_F32, 1, one, &e), TN_OK);
    ck_assert_int_eq(tn_layout_add(&l, "c", TN_F32, 1, most, &e), TN_ETOOBIG); /* with the one before */
    tn_layout_release(&l);
    ck_assert_int_eq(tn_layout_add(&l, "c", TN_F32, 1, most, &e), TN_OK);
    tn_layout_release(&l);
}
END_TEST

START_TEST(duplicates_are_found_when_sealing) {
    tn_layout l;
    tn_err e = TN_ERR_INIT;

    tn_layout_init(&l);
    add(&l, "a", TN_F32, 1, 1, 0);
    add(&l, "b", TN_F32, 1, 1, 0);
    add(&l, "a", TN_U8, 1, 1, 0); /* of another element size: not beside it in the final order */
    ck_assert_int_eq(tn_layout_seal(&l, &e), TN_EINVAL);
    ck_assert_str_eq(e.msg, "tensor a is there twice");
    tn_layout_release(&l);
    ck_assert_int_eq(tn_layout_seal(&l, &e), TN_OK); /* nothing is a layout too */
}
END_TEST

START_TEST(the_order_of_adding_does_not_matter) {
    static const tn_dtype dtypes[] = {TN_F32, TN_U8, TN_F64, TN_BF16, TN_I64, TN_BOOL};
    enum { N = 200 };
    tn_layout first = {0};
    tn_rng rng = tn_rng_seed(3);
    size_t order[N];

    for (size_t i = 0; i < N; i++)
        order[i] = i;
    for (int round = 0; round < 20; round++) {
        tn_layout l;

        for (size_t i = N - 1; i > 0; i--) {
            size_t j = (size_t)tn_rng_below(&rng, i + 1), t = order[i];

            order[i] = order[j];
            order[j] = t;
        }
        tn_layout_init(&l);
        for (size_t i = 0; i < N; i++) {
            char name[32];

            snprintf(name, sizeof(name), "layer.%zu", order[i]);
            add(&l, name, dtypes[order[i] % 6], 1, (int64_t)order[i], 0);
        }
        ck_assert_int_eq(tn_layout_seal(&l, NULL), TN_OK);
        if (round == 0) {
            first = l;
            continue;
        }
        ck_assert_int_eq(tn_layout_same(&first, "a", &l, "b", NULL), TN_OK);
        for (size_t i = 0; i < N; i++)
            ck_assert_uint_eq(first.entry[i].offset, l.entry[i].offset);
        tn_layout_release(&l);
    }
    tn_layout_release(&first);
}
END_TEST

static void expect_difference(const tn_layout *a, const tn_layout *b, const char *message) {
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_layout_same(a, "the model", b, "the update", &e), TN_ESHAPE);
    ck_assert_str_eq(e.msg, message);
    ck_assert_int_eq(tn_layout_same(b, "x", a, "y", NULL), TN_ESHAPE);
}

/* Each change to `small`, seen from the unchanged one. */
START_TEST(the_first_difference_is_named) {
    tn_layout a = small(), b = small();

    ck_assert_int_eq(tn_layout_same(&a, "a", &b, "b", NULL), TN_OK);
    b.entry[3].shape[1] = 64;
    expect_difference(&a, &b, "fc1.weight is float32[10, 128] in the model and float32[10, 64] in the update");
    b.entry[3].shape[1] = 128;
    b.entry[3].ndim = 1;
    expect_difference(&a, &b, "fc1.weight is float32[10, 128] in the model and float32[10] in the update");
    tn_layout_release(&b);

    tn_layout_init(&b);
    for (size_t i = 0; i + 1 < a.count; i++)
        add_entry(&b, &a.entry[i]);
    ck_assert_int_eq(tn_layout_seal(&b, NULL), TN_OK);
    expect_difference(&a, &b, "z is in the model but not in the update");
    expect_difference(&b, &a, "z is in the update but not in the model");
    tn_layout_release(&b);

    tn_layout_init(&b);
    for (size_t i = 1; i < a.count; i++)
        add_entry(&b, &a.entry[i]);
    add(&b, "step", TN_I32, 0, 0, 0); /* sorts elsewhere, as its elements are smaller */
    ck_assert_int_eq(tn_layout_seal(&b, NULL), TN_OK);
    expect_difference(&a, &b, "step is int64[] in the model and int32[] in the update");
    tn_layout_release(&b);

    tn_layout_init(&b);
    ck_assert_int_eq(tn_layout_copy(&b, &a, NULL), TN_OK);
    add(&b, "fc0", TN_F32, 1, 1, 0); /* in the middle */
    ck_assert_int_eq(tn_layout_seal(&b, NULL), TN_OK);
    expect_difference(&a, &b, "fc0 is in the update but not in the model");
    tn_layout_release(&b);
    expect_difference(&a, &b, "step is in the model but not in the update"); /* b is empty */
    tn_layout_release(&a);
}
END_TEST

/* Random pairs: same says no exactly when they differ, and never dies of its own assertion. */
START_TEST(differences_of_random_layouts) {
    static const tn_dtype dtypes[] = {TN_F32, TN_U8, TN_F64, TN_F16};
    tn_rng rng = tn_rng_seed(11);
    unsigned equal = 0;

    for (int round = 0; round < 3000; round++) {
        tn_layout l[2];
        uint32_t seen[2] = {0};
        tn_code code;

        for (int k = 0; k < 2; k++) {
            tn_layout_init(&l[k]);
            for (uint32_t i = 0; i < 3; i++) {
                uint32_t pick = (uint32_t)tn_rng_below(&rng, 5); /* 4: left out */
                char name[2] = {(char)('a' + i), '\0'};

                seen[k] = seen[k] * 5 + pick;
                if (pick < 4)
                    add(&l[k], name, dtypes[pick], 1, 2, 0);
            }
            ck_assert_int_eq(tn_layout_seal(&l[k], NULL), TN_OK);
        }
        code = tn_layout_same(&l[0], "a", &l[1], "b", NULL);
        ck_assert_int_eq(code, seen[0] == seen[1] ? TN_OK : TN_ESHAPE);
        equal += code == TN_OK;
        tn_layout_release(&l[0]);
        tn_layout_release(&l[1]);
    }
    ck_assert_uint_gt(equal, 0);
}
END_TEST

/* ---- CBOR ---- */

static tn_code decode(const tn_wr *w, tn_layout *l, tn_err *e) {
    tn_cbor v;

    ck_assert_int_eq(w->fail, TN_OK);
    ck_assert_msg(tn_cbor_parse(w->p, w->len, &v, e) == TN_OK, "%s", e->msg);
    return tn_layout_decode(l, &v, e);
}

START_TEST(a_round_trip) {
    tn_layout a = small(), b, c;
    tn_wr w = tn_wr_init(4096);
    tn_err e = TN_ERR_INIT;

    tn_layout_encode(&a, &w);
    ck_assert_int_eq(decode(&w, &b, &e), TN_OK);
    ck_assert_int_eq(tn_layout_same(&a, "a", &b, "b", &e), TN_OK);
    ck_assert_uint_eq(a.nbytes, b.nbytes);
    ck_assert_uint_eq(a.entry[5].offset, b.entry[5].offset);
    ck_assert_int_eq(tn_layout_copy(&c, &b, &e), TN_OK);
    tn_layout_release(&b); /* the copy owns its names */
    ck_assert_int_eq(tn_layout_same(&a, "a", &c, "c", &e), TN_OK);
    tn_layout_release(&c);
    tn_layout_release(&a);
    tn_wr_release(&w);
}
END_TEST

/* An array of one entry: [name, dtype, [dims...]]. */
static void put_entry(tn_wr *w, const char *name, size_t n, uint64_t dtype, size_t ndim, uint64_t dim) {
    w->len = 0;
    tn_cbor_put_array(w, 1);
    tn_cbor_put_array(w, 3);
    tn_cbor_put_textn(w, name, n);
    tn_cbor_put_u64(w, dtype);
    tn_cbor_put_array(w, ndim);
    for (size_t i = 0; i < ndim; i++)
        tn_cbor_put_u64(w, dim);
}

START_TEST(malformed_layouts_are_refused) {
    static const struct {
        const char *name;
        size_t n;
        uint64_t dtype;
        size_t ndim;
        uint64_t dim;
        tn_code code;
        const char *says;
    } rows[] = {
        {"w", 1, TN_F32, 2, 3, TN_OK, ""},
        {"", 0, TN_F32, 2, 3, TN_EPROTO, "layout entry 0: a tensor with an empty name"},
        {"w\0x", 3, TN_F32, 2, 3, TN_EPROTO, "NUL byte"},
        {"w", 1, TN_DTYPE_COUNT, 2, 3, TN_EPROTO, "layout entry 0: tensor w has the unknown dtype number 20"},
        {"w", 1, UINT64_MAX, 2, 3, TN_EPROTO, "unknown dtype number"},
        {"w", 1, UINT64_C(1) << 32 | TN_F32, 2, 3, TN_EPROTO, "unknown dtype number"},
        {"w", 1, TN_C128, 2, 3, TN_EPROTO, "complex128"},
        {"w", 1, TN_F32, 16, 1, TN_OK, ""},
        {"w", 1, TN_F32, 17, 1, TN_EPROTO, "more than 16 dimensions"},
        {"w", 1, TN_F32, 2, UINT64_C(1) << 63, TN_EPROTO, "dimension 0 is not a size"},
        {"w", 1, TN_F32, 2, UINT64_MAX, TN_EPROTO, "dimension 0 is not a size"},
        {"w", 1, TN_F32, 2, UINT64_C(1) << 40, TN_EPROTO, "2^63"},
        {"w", 1, TN_U8, 2, UINT64_C(1) << 20, TN_OK, ""},
        {"w", 1, TN_U8, 3, UINT64_C(1) << 20, TN_ETOOBIG, "2^40"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tn_wr w = tn_wr_init(4096);
        tn_layout l;
        tn_err e = TN_ERR_INIT;

        put_entry(&w, rows[i].name, rows[i].n, rows[i].dtype, rows[i].ndim, rows[i].dim);
        ck_assert_msg(decode(&w, &l, &e) == rows[i].code, "row %zu: %s", i, e.msg);
        ck_assert_int_eq(e.code, rows[i].code);
        ck_assert_msg(strstr(e.msg, rows[i].says) != NULL, "row %zu: %s", i, e.msg);
        if (rows[i].code != TN_OK)
            ck_assert(l.count == 0 && l.entry == NULL);
        tn_layout_release(&l);
        tn_wr_release(&w);
    }
}
END_TEST

START_TEST(other_shapes_of_cbor_are_refused) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } rows[] = {
        {"\xa0", 1, "a layout that is not an array"},
        {"\x01", 1, "a layout that is not an array"},
        {"\x81\x01", 2, "not a [name, dtype, shape] array"},
        {"\x81\x80", 2, "not a [name, dtype, shape] array"},
        {"\x81\x83\x61w\x0b\x0b", 6, "not a [name, dtype, shape] array"},
        {"\x81\x83\x41w\x0b\x80", 6, "not a [name, dtype, shape] array"},
        {"\x81\x83\x61w\x61w\x80", 7, "not a [name, dtype, shape] array"},
        {"\x81\x84\x61w\x0b\x80\x01", 7, "not a [name, dtype, shape] array"},
        {"\x81\x83\x61w\x0b\x81\x20", 7, "dimension 0 is not a size"},
        {"\x82\x83\x61w\x0b\x80\x83\x61w\x01\x80", 11, "tensor w is there twice"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tn_cbor v;
        tn_layout l;
        tn_err e = TN_ERR_INIT;

        ck_assert_msg(tn_cbor_parse(rows[i].bytes, rows[i].n, &v, &e) == TN_OK, "row %zu: %s", i, e.msg);
        ck_assert_int_eq(tn_layout_decode(&l, &v, &e), TN_EPROTO);
        ck_assert_int_eq(e.code, TN_EPROTO);
        ck_assert_msg(strstr(e.msg, rows[i].says) != NULL, "row %zu: %s", i, e.msg);
        ck_assert(l.count == 0 && l.entry == NULL);
    }
}
END_TEST

START_TEST(mutations_are_refused_or_sealed) {
    tn_layout base = small();
    tn_wr w = tn_wr_init(4096);
    tn_rng rng = tn_rng_seed(77);
    unsigned accepted = 0;

    tn_layout_encode(&base, &w);
    for (int round = 0; round < 20000; round++) {
        uint8_t *bytes = malloc(w.len);
        tn_cbor v;
        tn_layout l;
        tn_err e = TN_ERR_INIT;

        memcpy(bytes, w.p, w.len);
        for (uint64_t i = 0; i <= tn_rng_below(&rng, 2); i++)
            bytes[tn_rng_below(&rng, w.len)] = (uint8_t)tn_rng_u64(&rng);
        if (tn_cbor_parse(bytes, w.len, &v, &e) == TN_OK && tn_layout_decode(&l, &v, &e) == TN_OK) {
            size_t at = 0;

            for (size_t i = 0; i < l.count; i++) {
                if (l.entry[i].offset != at || tn_layout_find(&l, l.entry[i].name) != &l.entry[i])
                    ck_abort_msg("a layout out of order");
                at += l.entry[i].nbytes;
            }
            if (at != l.nbytes)
                ck_abort_msg("sizes that do not add up");
            accepted++;
            tn_layout_release(&l);
        } else if (e.code == TN_OK || e.msg[0] == '\0') {
            ck_abort_msg("a refusal without a reason");
        }
        free(bytes);
    }
    ck_assert_uint_gt(accepted, 500);
    tn_layout_release(&base);
    tn_wr_release(&w);
}
END_TEST

/* As many tensors as are allowed: nothing is quadratic, or the time limit of the test case would end it. */
START_TEST(the_largest_layout) {
    tn_layout a, b;
    tn_wr w = tn_wr_init(8u << 20);
    tn_err e = TN_ERR_INIT;
    int64_t one[] = {1};

    tn_layout_init(&a);
    for (size_t i = 0; i < TN_LAYOUT_MAX_TENSORS; i++) {
        char name[32];

        snprintf(name, sizeof(name), "layer.%zu.weight", i * 40503 % TN_LAYOUT_MAX_TENSORS);
        if (tn_layout_add(&a, name, TN_F32, 1, one, &e) != TN_OK)
            ck_abort_msg("%s", e.msg);
    }
    ck_assert_int_eq(tn_layout_add(&a, "one more", TN_F32, 1, one, &e), TN_ETOOBIG);
    ck_assert_str_eq(e.msg, "tensor one more: a model has at most 65536 tensors");
    ck_assert_int_eq(tn_layout_seal(&a, &e), TN_OK);
    ck_assert_uint_eq(a.nbytes, 4u * TN_LAYOUT_MAX_TENSORS);
    tn_layout_encode(&a, &w);
    ck_assert_int_eq(decode(&w, &b, &e), TN_OK);
    ck_assert_int_eq(tn_layout_same(&a, "a", &b, "b", &e), TN_OK);
    b.entry[TN_LAYOUT_MAX_TENSORS - 1].dtype = TN_I32;
    ck_assert_int_eq(tn_layout_same(&a, "a", &b, "b", &e), TN_ESHAPE);
    ck_assert_str_eq(e.msg, "layer.9999.weight is float32[1] in a and int32[1] in b");
    for (size_t i = 0; i < a.count; i++) {
        if (tn_layout_find(&a, a.entry[i].name) != &a.entry[i])
            ck_abort_msg("%s is not found", a.entry[i].name);
    }
    tn_layout_release(&a);
    tn_layout_release(&b);
    tn_wr_release(&w);
}
END_TEST

START_TEST(more_than_the_largest_is_refused_before_memory_is_taken) {
    tn_wr w = tn_wr_init(1u << 20);
    tn_layout l;
    tn_err e = TN_ERR_INIT;

    tn_cbor_put_array(&w, TN_LAYOUT_MAX_TENSORS + 1);
    for (size_t i = 0; i <= TN_LAYOUT_MAX_TENSORS; i++)
        tn_cbor_put_array(&w, 0);
    ck_assert_int_eq(decode(&w, &l, &e), TN_ETOOBIG);
    ck_assert_str_eq(e.msg, "a layout of 65537 tensors; at most 65536 are allowed");
    tn_wr_release(&w);
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/layout");
    TCase *tc = tcase_create("layout");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, sealing_orders_by_element_size_and_name);
    tcase_add_test(tc, views_lie_where_the_layout_says);
    tcase_add_test(tc, what_cannot_be_added);
    tcase_add_test(tc, duplicates_are_found_when_sealing);
    tcase_add_test(tc, the_order_of_adding_does_not_matter);
    tcase_add_test(tc, the_first_difference_is_named);
    tcase_add_test(tc, differences_of_random_layouts);
    tcase_add_test(tc, a_round_trip);
    tcase_add_test(tc, malformed_layouts_are_refused);
    tcase_add_test(tc, other_shapes_of_cbor_are_refused);
    tcase_add_test(tc, mutations_are_refused_or_sealed);
    tcase_add_test(tc, the_largest_layout);
    tcase_add_test(tc, more_than_the_largest_is_refused_before_memory_is_taken);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Updates, deltas and FedAvg: hand-computed values, every kind of dtype, what is refused, and the same bits
 * in every order. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "fed/fed.h"

static tn_err err;

static void add(tn_layout *l, const char *name, tn_dtype dtype, int64_t n) {
    ck_assert_msg(tn_layout_add(l, name, dtype, 1, &n, &err) == TN_OK, "%s", err.msg);
}

static void seal(tn_layout *l) { ck_assert_msg(tn_layout_seal(l, &err) == TN_OK, "%s", err.msg); }

/* Where a tensor lies in a block. */
static void *at(const tn_layout *l, void *block, const char *name) {
    const tn_layout_entry *e = tn_layout_find(l, name);

    ck_assert_ptr_nonnull(e);
    return (uint8_t *)block + e->offset;
}

static const tn_agg_ops *fedavg(void) {
    const tn_agg_ops *agg = tn_agg_find("fedavg");

    ck_assert_ptr_nonnull(agg);
    return agg;
}

/* Blocks are aligned for any element. */
static void *block_of(const tn_layout *l) {
    void *p = calloc(1, l->nbytes + 1);

    ck_assert_ptr_nonnull(p);
    return p;
}

static tn_layout one_tensor(const char *name, tn_dtype dtype, int64_t n) {
    tn_layout l;

    tn_layout_init(&l);
    add(&l, name, dtype, n);
    seal(&l);
    return l;
}

START_TEST(the_mean_is_weighted) {
    tn_layout l = one_tensor("w", TN_F32, 2);
    float a[] = {1, 2}, b[] = {3, 4}, model[] = {10, 20};
    tn_update u[] = {{"b", 3, b}, {"a", 1, a}};

    ck_assert_int_eq(tn_agg_run(fedavg(), &l, u, 2, model, &err), TN_OK);
    ck_assert(model[0] == 12.5f && model[1] == 23.5f); /* (1*1 + 3*3)/4 = 2.5, (1*2 + 3*4)/4 = 3.5 */
    ck_assert_str_eq(u[0].client, "a");
    tn_layout_release(&l);
}
END_TEST

/* CASES 21, for every aggregator. */
START_TEST(zero_examples) {
    tn_layout l = one_tensor("w", TN_F32, 2);
    float a[] = {1, 2}, b[] = {3, 4};
    size_t n;
    const tn_agg_ops *const *all = tn_agg_all(&n);

    ck_assert_uint_ge(n, 1);
    for (size_t i = 0; i < n; i++) {
        float model[] = {0, 0};
        tn_update both[] = {{"a", 0, a}, {"b", 0, b}}, one[] = {{"a", 0, a}, {"b", 5, b}};
        tn_update good[] = {{"b", 5, b}};

        ck_assert_int_eq(tn_agg_run(all[i], &l, both, 2, model, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "client a"));
        ck_assert_int_eq(tn_agg_run(all[i], &l, one, 2, model, &err), TN_EINVAL);
        ck_assert(model[0] == 0 && model[1] == 0);
        ck_assert_int_eq(tn_update_check(&l, &one[0], &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "0 examples"));
        ck_assert_int_eq(tn_agg_run(all[i], &l, good, 1, model, &err), TN_OK);
        ck_assert(model[0] == 3 && model[1] == 4);
    }
    tn_layout_release(&l);
}
END_TEST

START_TEST(counts_in_range) {
    tn_layout l = one_tensor("w", TN_F32, 1);
    float d = 1, model = 0;
    tn_update most = {"a", UINT64_C(1) << 40, &d}, over = {"a", (UINT64_C(1) << 40) + 1, &d};

    ck_assert_int_eq(tn_update_check(&l, &most, &err), TN_OK);
    ck_assert_int_eq(tn_update_check(&l, &over, &err), TN_EINVAL);
    ck_assert_int_eq(tn_agg_run(fedavg(), &l, &over, 1, &model, &err), TN_EINVAL);
    ck_assert_int_eq(tn_agg_run(fedavg(), &l, &most, 1, &model, &err), TN_OK);
    ck_assert(model == 1);
    tn_layout_release(&l);
}
END_TEST

/* CASES 8: a BatchNorm's buffers on clients with 3, 7 and 90 examples. */
START_TEST(buffers_and_counters) {
    static const uint64_t examples[] = {3, 7, 90};
    static const float mean[] = {0.5f, -1.0f, 2.0f};
    static const int64_t batches[] = {1, 2, 12};
    static const char *const id[] = {"a", "b", "c"};
    tn_layout l;
    uint8_t *delta[3], *model;
    tn_update u[3];

    tn_layout_init(&l);
    add(&l, "bn.running_mean", TN_F32, 1);
    add(&l, "bn.num_batches_tracked", TN_I64, 1);
    seal(&l);
    model = block_of(&l);
    *(float *)at(&l, model, "bn.running_mean") = 1;
    *(int64_t *)at(&l, model, "bn.num_batches_tracked") = 100;
    for (int i = 0; i < 3; i++) {
        delta[i] = block_of(&l);
        *(float *)at(&l, delta[i], "bn.running_mean") = mean[i];
        *(int64_t *)at(&l, delta[i], "bn.num_batches_tracked") = batches[i];
        u[i] = (tn_update){id[i], examples[i], delta[i]};
    }
    ck_assert_int_eq(tn_agg_run(fedavg(), &l, u, 3, model, &err), TN_OK);
    /* 1 + (3*0.5 - 7*1 + 90*2)/100 = 2.745 */
    ck_assert(*(float *)at(&l, model, "bn.running_mean") == 1.0f + (float)1.745);
    ck_assert_int_eq(*(int64_t *)at(&l, model, "bn.num_batches_tracked"), 112);
    for (int i = 0; i < 3; i++)
        free(delta[i]);
    free(model);
    tn_layout_release(&l);
}
END_TEST

/* Entries of one size lie side by side whatever their dtype: each must be taken as what it is. */
START_TEST(a_mixture_of_dtypes) {
    tn_layout l;
    uint8_t *a, *b, *model;
    tn_update u[2];
    static const char *const f64s[] = {"a.f64", "d.f64"};

    tn_layout_init(&l);
    add(&l, "a.f64", TN_F64, 2);
    add(&l, "b.i64", TN_I64, 2);
    add(&l, "c.c64", TN_C64, 1);
    add(&l, "d.f64", TN_F64, 1);
    add(&l, "e.f32", TN_F32, 3);
    add(&l, "f.i32", TN_I32, 1);
    add(&l, "g.f16", TN_F16, 2);
    add(&l, "h.bf16", TN_BF16, 2);
    add(&l, "i.i16", TN_I16, 1);
    add(&l, "j.bool", TN_BOOL, 3);
    add(&l, "k.u8", TN_U8, 1);
    add(&l, "m.empty", TN_F64, 0);
    seal(&l);
    a = block_of(&l);
    b = block_of(&l);
    model = block_of(&l);
    for (int i = 0; i < 2; i++) { /* weights 1 and 3, deltas 1 and 3: 2.5 */
        *(double *)at(&l, a, f64s[i]) = 1;
        *(double *)at(&l, b, f64s[i]) = 3;
        *(double *)at(&l, model, f64s[i]) = 100 + i;
    }
    ((int64_t *)at(&l, a, "b.i64"))[0] = -5;
    ((int64_t *)at(&l, b, "b.i64"))[0] = -7;
    ((int64_t *)at(&l, b, "b.i64"))[1] = INT64_C(1) << 60; /* a double would lose it */
    ((int64_t *)at(&l, model, "b.i64"))[1] = 1;
    ((float *)at(&l, a, "c.c64"))[1] = 1;
    ((float *)at(&l, b, "c.c64"))[1] = 3;
    ((float *)at(&l, b, "e.f32"))[2] = 4;
    *(int32_t *)at(&l, a, "f.i32") = 9;
    *(int32_t *)at(&l, b, "f.i32") = 8;
    ((uint16_t *)at(&l, a, "g.f16"))[0] = 0x3c00;      /* 1 */
    ((uint16_t *)at(&l, b, "g.f16"))[0] = 0x4200;      /* 3 */
    ((uint16_t *)at(&l, model, "g.f16"))[0] = 0x3800;  /* 0.5 */
    ((uint16_t *)at(&l, a, "h.bf16"))[1] = 0x3f80;     /* 1 */
    ((uint16_t *)at(&l, b, "h.bf16"))[1] = 0x4040;     /* 3 */
    ((uint16_t *)at(&l, model, "h.bf16"))[1] = 0x3f00; /* 0.5 */
    *(int16_t *)at(&l, a, "i.i16") = -3;
    *(int16_t *)at(&l, b, "i.i16") = -2;
    memcpy(at(&l, model, "j.bool"), "\1\0\1", 3);
    *(uint8_t *)at(&l, a, "k.u8") = 200;
    *(uint8_t *)at(&l, model, "k.u8") = 50;
    u[0] = (tn_update){"a", 1, a};
    u[1] = (tn_update){"b", 3, b};
    for (int i = 0; i < 2; i++)
        ck_assert_msg(tn_update_check(&l, &u[i], &err) == TN_OK, "%s", err.msg);
    ck_assert_msg(tn_agg_run(fedavg(), &l, u, 2, model, &err) == TN_OK, "%s", err.msg);
    ck_assert(((double *)at(&l, model, "a.f64"))[0] == 102.5);
    ck_assert(*(double *)at(&l, model, "d.f64") == 103.5);
    ck_assert_int_eq(((int64_t *)at(&l, model, "b.i64"))[0], -5);
    ck_assert_int_eq(((int64_t *)at(&l, model, "b.i64"))[1], (INT64_C(1) << 60) + 1);
    ck_assert(((float *)at(&l, model, "c.c64"))[0] == 0 && ((float *)at(&l, model, "c.c64"))[1] == 2.5f);
    ck_assert(((float *)at(&l, model, "e.f32"))[2] == 3);
    ck_assert_int_eq(*(int32_t *)at(&l, model, "f.i32"), 9);
    ck_assert_uint_eq(((uint16_t *)at(&l, model, "g.f16"))[0], 0x4200);  /* 3 */
    ck_assert_uint_eq(((uint16_t *)at(&l, model, "h.bf16"))[1], 0x4040); /* 3 */
    ck_assert_int_eq(*(int16_t *)at(&l, model, "i.i16"), -2);
    ck_assert_mem_eq(at(&l, model, "j.bool"), "\1\0\1", 3);
    ck_assert_uint_eq(*(uint8_t *)at(&l, model, "k.u8"), 250);
    free(a);
    free(b);
    free(model);
    tn_layout_release(&l);
}
END_TEST

/* ---- What is refused ---- */

START_TEST(nan_and_inf_are_named) {
    static const struct {
        tn_dtype dtype;
        uint64_t bits; /* of one bad element, little-endian */
    } bad[] = {
        {TN_F32, 0x7fc00000}, {TN_F32, 0x7f800000}, {TN_F32, 0xff800000},
        {TN_F64, UINT64_C(0x7ff8000000000000)},
        {TN_F64, UINT64_C(0xfff0000000000000)},     {TN_F16, 0x7e00},     {TN_F16, 0xfc00},
        {TN_BF16, 0x7fc0},    {TN_BF16, 0x7f80},    {TN_C64, UINT64_C(0x7f80000000000000)},
        {TN_C64, 0x7fc00000}, {TN_F8_E4M3, 0x7f},   {TN_F8_E5M2, 0x7c},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tn_layout l;
        uint8_t *d;
        size_t size = tn_dtype_size(bad[i].dtype);
        tn_update u;

        tn_layout_init(&l);
        add(&l, "first", bad[i].dtype, 5);
        add(&l, "none", bad[i].dtype, 0);
        add(&l, "second", bad[i].dtype, 9);
        add(&l, "third", bad[i].dtype, 4);
        seal(&l);
        d = block_of(&l);
        u = (tn_update){"hospital-3", 1, d};
        ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_OK);
        memcpy((uint8_t *)at(&l, d, "second") + 7 * size, &bad[i].bits, size);
        ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_ENONFINITE);
        ck_assert_msg(strstr(err.msg, "hospital-3: ") && strstr(err.msg, "second (") &&
                          strstr(err.msg, "element 7"), "%s", err.msg);
        free(d);
        tn_layout_release(&l);
    }
}
END_TEST

START_TEST(the_first_element_and_the_last) {
    enum { N = 70000 };
    tn_layout l = one_tensor("w", TN_F32, N);
    float *d = block_of(&l);
    tn_update u = {"a", 1, d};
    static const int places[] = {0, 1, 65535, 65536, N - 1};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        char want[32];

        d[places[i]] = NAN;
        snprintf(want, sizeof(want), "element %d", places[i]);
        ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_ENONFINITE);
        ck_assert_ptr_nonnull(strstr(err.msg, want));
        d[places[i]] = 0;
    }
    ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_OK);
    free(d);
    tn_layout_release(&l);
}
END_TEST

START_TEST(bool_is_never_changed) {
    static const tn_dtype fixed[] = {TN_BOOL, TN_F8_E8M0};

    for (size_t i = 0; i < 2; i++) {
        tn_layout l = one_tensor("mask", fixed[i], 6);
        uint8_t d[6] = {0};
        tn_update u = {"a", 1, d};

        ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_OK);
        d[4] = 1;
        ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_EINVAL);
        ck_assert_msg(strstr(err.msg, "mask[4]") && strstr(err.msg, "client a"), "%s", err.msg);
        tn_layout_release(&l);
    }
}
END_TEST

START_TEST(sets_refused) {
    tn_layout l = one_tensor("w", TN_F32, 1);
    float d = 1, model = 5;
    tn_update u[] = {{"a", 1, &d}, {"b", 1, &d}, {"a", 2, &d}};

    ck_assert_int_eq(tn_agg_run(fedavg(), &l, u, 0, &model, &err), TN_EINVAL);
    ck_assert_int_eq(tn_agg_run(fedavg(), &l, u, 3, &model, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "client a has two"));
    ck_assert(model == 5);
    ck_assert_ptr_null(tn_agg_find("fedsgd"));
    ck_assert_ptr_null(tn_agg_find(""));
    tn_layout_release(&l);
}
END_TEST

/* Finite updates, and a sum that is not: the model stays as it was, in every tensor. */
START_TEST(an_aggregate_out_of_range) {
    tn_layout l;
    uint8_t *d, *model, *before;
    tn_update u;

    tn_layout_init(&l);
    add(&l, "a.fine", TN_F32, 4);
    add(&l, "b.large", TN_F16, 4);
    seal(&l);
    d = block_of(&l);
    model = block_of(&l);
    before = block_of(&l);
    for (int i = 0; i < 4; i++)
        ((float *)at(&l, d, "a.fine"))[i] = 1;
    ((uint16_t *)at(&l, d, "b.large"))[2] = 0x7bff; /* 65504, the largest */
    ((uint16_t *)at(&l, model, "b.large"))[2] = 0x7bff;
    memcpy(before, model, l.nbytes);
    u = (tn_update){"a", 1, d};
    ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_OK);
    ck_assert_int_eq(tn_agg_run(fedavg(), &l, &u, 1, model, &err), TN_ENONFINITE);
    ck_assert_msg(strstr(err.msg, "b.large") && strstr(err.msg, "element 2"), "%s", err.msg);
    ck_assert_mem_eq(model, before, l.nbytes);
    free(d);
    free(model);
    free(before);
    tn_layout_release(&l);
}
END_TEST

/* ---- Order and blocks ---- */

static double reference(const float *const *d, const uint64_t *w, int n, size_t i) {
    double sum = 0, all = 0;

    for (int k = 0; k < n; k++) {
        sum += (double)w[k] * (double)d[k][i];
        all += (double)w[k];
    }
    return sum / all;
}

/* 24 orders of four updates over sizes around the block's edge: one set of bits, and the right one. */
START_TEST(every_order_gives_the_same_bits) {
    static const int64_t sizes[] = {1, 7, 65535, 65536, 65537, 131073};
    static const uint64_t w[] = {3, 1000003, 17, 1};
    static const char *const id[] = {"a", "b", "c", "d"};
    tn_layout l = one_tensor("w", TN_F32, sizes[_i]);
    size_t n = (size_t)sizes[_i];
    float *d[4], *model = block_of(&l), *first = block_of(&l);
    const float *view[4];
    tn_rng rng = tn_rng_seed(5);

    for (int k = 0; k < 4; k++) {
        d[k] = block_of(&l);
        view[k] = d[k];
        for (size_t i = 0; i < n; i++)
            d[k][i] = (float)((tn_rng_unit(&rng) - 0.5) * pow(10, (double)tn_rng_below(&rng, 12) - 6));
    }
    for (int order = 0; order < 24; order++) {
        int left[] = {0, 1, 2, 3}, code = order;
        tn_update u[4];

        for (int k = 0; k < 4; k++) {
            int pick = code % (4 - k);

            code /= 4 - k;
            u[k] = (tn_update){id[left[pick]], w[left[pick]], d[left[pick]]};
            memmove(left + pick, left + pick + 1, (size_t)(3 - pick) * sizeof(int));
        }
        memset(model, 0, l.nbytes);
        ck_assert_int_eq(tn_agg_run(fedavg(), &l, u, 4, model, &err), TN_OK);
        if (order == 0)
            memcpy(first, model, l.nbytes);
        ck_assert_mem_eq(model, first, l.nbytes);
    }
    for (size_t i = 0; i < n; i++) {
        double want = reference(view, w, 4, i);

        ck_assert(fabs((double)first[i] - want) <= fabs(want) * 6e-8 + 1e-45);
    }
    for (int k = 0; k < 4; k++)
        free(d[k]);
    free(model);
    free(first);
    tn_layout_release(&l);
}
END_TEST

/* ---- Deltas ---- */

/* Small whole numbers are exact in every dtype: base + (local - base) is local again, in place or not. */
START_TEST(deltas_there_and_back) {
    static const tn_dtype dtypes[] = {TN_BOOL, TN_U8,  TN_I8,  TN_I16, TN_I32,     TN_I64,
                                      TN_U16,  TN_U32, TN_U64, TN_F16, TN_BF16,    TN_F32,
                                      TN_F64,  TN_C64, TN_F8_E4M3,     TN_F8_E5M2, TN_F8_E8M0};
    tn_layout l;
    uint8_t *local, *base, *delta, *in_local, *in_base;
    tn_rng rng = tn_rng_seed(11);

    tn_layout_init(&l);
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        add(&l, tn_dtype_name(dtypes[i]), dtypes[i], 3001);
    seal(&l);
    local = block_of(&l);
    base = block_of(&l);
    for (size_t i = 0; i < l.count; i++) {
        uint8_t *p = local + l.entry[i].offset, *q = base + l.entry[i].offset;
        tn_dtype t = l.entry[i].dtype;

        for (size_t j = 0; j < 3001; j++) {
            uint8_t x = (uint8_t)tn_rng_below(&rng, 2), y = (uint8_t)tn_rng_below(&rng, 2);

            if (t == TN_F16) { /* 1 or 2 */
                ((uint16_t *)(void *)p)[j] = x ? 0x3c00 : 0x4000;
                ((uint16_t *)(void *)q)[j] = y ? 0x3c00 : 0x4000;
            } else if (t == TN_BF16) {
                ((uint16_t *)(void *)p)[j] = x ? 0x3f80 : 0x4000;
                ((uint16_t *)(void *)q)[j] = y ? 0x3f80 : 0x4000;
            } else if (t == TN_F32) {
                ((float *)(void *)p)[j] = x;
                ((float *)(void *)q)[j] = y;
            } else if (t == TN_F64) {
                ((double *)(void *)p)[j] = x;
                ((double *)(void *)q)[j] = y;
            } else if (t == TN_C64) {
                ((float *)(void *)p)[2 * j + 1] = x;
                ((float *)(void *)q)[2 * j] = y;
            } else if (t == TN_F8_E4M3) { /* 1 or 2 */
                p[j] = x ? 0x38 : 0x40;
                q[j] = y ? 0x38 : 0x40;
            } else if (t == TN_F8_E5M2) {
                p[j] = x ? 0x3c : 0x40;
                q[j] = y ? 0x3c : 0x40;
            } else { /* integers of any size, bool: the lowest byte of each element */
                p[j * tn_dtype_size(t)] = x;
                q[j * tn_dtype_size(t)] = y;
            }
        }
    }
    delta = block_of(&l);
    in_local = block_of(&l);
    in_base = block_of(&l);
    tn_delta_make(&l, local, base, delta);
    memcpy(in_local, local, l.nbytes);
    tn_delta_make(&l, in_local, base, in_local);
    ck_assert_mem_eq(in_local, delta, l.nbytes);
    memcpy(in_base, base, l.nbytes);
    tn_delta_make(&l, local, in_base, in_base);
    ck_assert_mem_eq(in_base, delta, l.nbytes);
    tn_delta_apply(&l, base, delta);
    ck_assert_mem_eq(base, local, l.nbytes);
    free(local);
    free(base);
    free(delta);
    free(in_local);
    free(in_base);
    tn_layout_release(&l);
}
END_TEST

/* An attention mask kept as a buffer: -Inf that nobody changes makes no NaN, and stays -Inf. */
START_TEST(infinite_buffers) {
    tn_layout l = one_tensor("mask", TN_F32, 4);
    float base[] = {-INFINITY, 0, NAN, 1}, local[] = {-INFINITY, 1, NAN, 1}, delta[4], model[4];
    tn_update u = {"a", 1, delta};

    tn_delta_make(&l, local, base, delta);
    ck_assert(delta[0] == 0 && delta[1] == 1 && delta[2] == 0 && delta[3] == 0);
    ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_OK);
    memcpy(model, base, sizeof(model));
    ck_assert_msg(tn_agg_run(fedavg(), &l, &u, 1, model, &err) == TN_OK, "%s", err.msg);
    ck_assert(model[0] == -INFINITY && model[1] == 1 && isnan(model[2]) && model[3] == 1);
    local[3] = INFINITY; /* a change to Inf is one */
    tn_delta_make(&l, local, base, delta);
    ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_ENONFINITE);
    ck_assert_ptr_nonnull(strstr(err.msg, "element 3"));
    tn_layout_release(&l);
}
END_TEST

START_TEST(an_empty_model) {
    tn_layout l;
    uint8_t model = 0;
    tn_update u = {"a", 1, &model};

    tn_layout_init(&l);
    seal(&l);
    ck_assert_int_eq(tn_update_check(&l, &u, &err), TN_OK);
    ck_assert_int_eq(tn_agg_run(fedavg(), &l, &u, 1, &model, &err), TN_OK);
    tn_delta_make(&l, &model, &model, &model);
    tn_delta_apply(&l, &model, &model);
    tn_layout_release(&l);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fed_agg");
    TCase *c = tcase_create("agg");
    SRunner *r = srunner_create(s);
    int failed;

    suite_add_tcase(s, c);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, the_mean_is_weighted);
    tcase_add_test(c, zero_examples);
    tcase_add_test(c, counts_in_range);
    tcase_add_test(c, buffers_and_counters);
    tcase_add_test(c, a_mixture_of_dtypes);
    tcase_add_test(c, nan_and_inf_are_named);
    tcase_add_test(c, the_first_element_and_the_last);
    tcase_add_test(c, bool_is_never_changed);
    tcase_add_test(c, sets_refused);
    tcase_add_test(c, an_aggregate_out_of_range);
    tcase_add_loop_test(c, every_order_gives_the_same_bits, 0, 6);
    tcase_add_test(c, deltas_there_and_back);
    tcase_add_test(c, infinite_buffers);
    tcase_add_test(c, an_empty_model);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

/* Every variant gives the bits of the scalar reference: each op and dtype, lengths around the vector and block
 * sizes, up to eight sources, starts that are aligned to the element only, and results that overwrite a source. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

static const char *const variants[] = {"baseline", "avx2", "avx512"};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))
#define MAX_K 8
#define MAX_N 70001
#define GUARD 64

static const size_t lengths[] = {0, 1, 3, 7, 16, 1000, 1003, 2049, MAX_N};
static const size_t counts[] = {1, 2, 3, 5, MAX_K};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t next(uint64_t *state) { /* Vigna's splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* Three numbers in four of ordinary size, so that sums round; the fourth any bits at all: NaN, Inf, subnormals. */
static void fill(tn_dtype dtype, void *p, size_t n, uint64_t seed) {
    static const struct {
        uint64_t keep, set;
    } ordinary[TN_DTYPE_COUNT] = {
        [TN_F16] = {0x8fff, 0x3000},           [TN_BF16] = {0x81ff, 0x3e00},
        [TN_F32] = {0x81ffffff, 0x3e000000},   [TN_F64] = {0x803fffffffffffff, 0x3fc0000000000000},
        [TN_C64] = {0x81ffffff, 0x3e000000},   [TN_C128] = {0x803fffffffffffff, 0x3fc0000000000000},
        [TN_F8_E4M3] = {0x9f, 0x20},           [TN_F8_E5M2] = {0x8f, 0x30},
        [TN_F8_E4M3FNUZ] = {0x9f, 0x20},       [TN_F8_E5M2FNUZ] = {0x8f, 0x30},
    };
    size_t parts = tn_dtype_is_complex(dtype) ? 2 : 1, es = tn_dtype_size(dtype) / parts;

    for (size_t i = 0; i < n * parts; i++) {
        uint64_t r = next(&seed);

        if (ordinary[dtype].keep != 0 && (r >> 62) != 0)
            r = (r & ordinary[dtype].keep) | ordinary[dtype].set;
        memcpy((uint8_t *)p + i * es, &r, es);
    }
}

/* Memory of n elements that starts `shift` elements behind a boundary of 64 bytes, between two guards. */
typedef struct region {
    uint8_t *base, *p;
    size_t bytes;
} region;

static region region_new(tn_dtype dtype, size_t n, size_t shift) {
    region r;

    r.bytes = n * tn_dtype_size(dtype);
    r.base = aligned_alloc(64, (GUARD + shift * tn_dtype_size(dtype) + r.bytes + GUARD + 63) / 64 * 64);
    ck_assert_ptr_nonnull(r.base);
    r.p = r.base + GUARD + shift * tn_dtype_size(dtype);
    memset(r.base, 0xa5, (size_t)(r.p - r.base));
    memset(r.p + r.bytes, 0xa5, GUARD);
    return r;
}

static void region_release(region *r) {
    bool whole = true; /* one assertion: each one is a message to the parent */

    for (uint8_t *g = r->base; g < r->p; g++)
        whole = whole && *g == 0xa5;
    for (size_t i = 0; i < GUARD; i++)
        whole = whole && r->p[r->bytes + i] == 0xa5;
    ck_assert_msg(whole, "wrote outside of the result");
    free(r->base);
}

static void expect(const region *got, const region *want, tn_dtype dtype, const char *what, const char *variant,
                   size_t k, size_t n) {
    size_t i = 0;

    if (want->bytes == 0 || memcmp(got->p, want->p, want->bytes) == 0)
        return;
    while (got->p[i] == want->p[i])
        i++;
    ck_abort_msg("%s %s, %s, k = %zu, n = %zu: element %zu differs", what, tn_dtype_name(dtype), variant, k, n,
                 i / tn_dtype_size(dtype));
}

static void reduce_case(tn_op op, tn_dtype dtype, size_t k, size_t n, size_t shift) {
    static const double weights[MAX_K] = {3, 0, 0.7, 41, 1e-3, 5, 0, 2.25};
    region src[MAX_K], want = region_new(dtype, n, 0);
    const void *in[MAX_K];

    for (size_t j = 0; j < k; j++) {
        src[j] = region_new(dtype, n, (shift * (j + 1)) % 5);
        fill(dtype, src[j].p, n, 1000 * n + 10 * k + j);
        in[j] = src[j].p;
    }
    ck_assert_int_eq(tn_k_force("scalar", NULL), TN_OK);
    tn_k_reduce(op, dtype, want.p, in, weights, k, n);
    for (size_t v = 0; v < VARIANTS; v++) {
        region got = region_new(dtype, n, shift);

        if (tn_k_force(variants[v], NULL) == TN_OK) {
            tn_k_reduce(op, dtype, got.p, in, weights, k, n);
            expect(&got, &want, dtype, tn_op_name(op), variants[v], k, n);
            for (size_t a = 0; a < k; a += k > 1 ? k - 1 : 1) { /* over the first source, and over the last */
                if (n > 0)
                    memcpy(got.p, in[a], got.bytes);
                in[a] = got.p;
                tn_k_reduce(op, dtype, got.p, in, weights, k, n);
                in[a] = src[a].p;
                expect(&got, &want, dtype, tn_op_name(op), variants[v], k, n);
            }
        }
        region_release(&got);
    }
    for (size_t j = 0; j < k; j++)
        region_release(&src[j]);
    region_release(&want);
}

START_TEST(reductions) {
    tn_dtype dtype = (tn_dtype)_i;

    for (int o = 0; o < TN_OP_COUNT; o++) {
        if (!tn_k_reduce_supported((tn_op)o, dtype))
            continue;
        for (size_t l = 0; l < COUNT(lengths); l++) {
            for (size_t c = 0; c < COUNT(counts); c++) {
                if (lengths[l] == MAX_N && counts[c] != 5) /* the reference is slow */
                    continue;
                reduce_case((tn_op)o, dtype, counts[c], lengths[l], 0);
                if (lengths[l] < MAX_N)
                    reduce_case((tn_op)o, dtype, counts[c], lengths[l], 1);
            }
        }
    }
}
END_TEST

static void sub_and_scale(tn_dtype dtype, size_t n, size_t shift) {
    region a = region_new(dtype, n, shift), b = region_new(dtype, n, 2 * shift);
    region difference = region_new(dtype, n, 0), scaled = region_new(dtype, n, 0), sum = region_new(dtype, n, 0);
    bool floats = !tn_dtype_is_integer(dtype);

    fill(dtype, a.p, n, n);
    fill(dtype, b.p, n, n + 1);
    ck_assert_int_eq(tn_k_force("scalar", NULL), TN_OK);
    tn_k_sub(dtype, difference.p, a.p, b.p, n);
    tn_k_add(dtype, sum.p, a.p, b.p, n);
    if (floats)
        tn_k_scale(dtype, scaled.p, a.p, -0.3, n);
    for (size_t v = 0; v < VARIANTS; v++) {
        region got = region_new(dtype, n, 1);

        if (tn_k_force(variants[v], NULL) == TN_OK) {
            tn_k_sub(dtype, got.p, a.p, b.p, n);
            expect(&got, &difference, dtype, "sub", variants[v], 2, n);
            if (n > 0)
                memcpy(got.p, b.p, got.bytes);
            tn_k_sub(dtype, got.p, a.p, got.p, n); /* over the second operand */
            expect(&got, &difference, dtype, "sub over b", variants[v], 2, n);
            tn_k_add(dtype, got.p, a.p, b.p, n);
            expect(&got, &sum, dtype, "add", variants[v], 2, n);
            if (floats) {
                if (n > 0)
                    memcpy(got.p, a.p, got.bytes);
                tn_k_scale(dtype, got.p, got.p, -0.3, n);
                expect(&got, &scaled, dtype, "scale", variants[v], 1, n);
            }
        }
        region_release(&got);
    }
    region_release(&a);
    region_release(&b);
    region_release(&difference);
    region_release(&scaled);
    region_release(&sum);
}

START_TEST(differences_and_multiples) {
    tn_dtype dtype = (tn_dtype)_i;

    if (dtype == TN_BOOL || dtype == TN_F8_E8M0)
        return;
    for (size_t l = 0; l < COUNT(lengths); l++)
        sub_and_scale(dtype, lengths[l], l % 2);
}
END_TEST

/* Of ordinary numbers, and of any bits: a NaN would hide the rest of a sum. */
START_TEST(norms_and_nonfinite) {
    tn_dtype dtype = (tn_dtype)_i;

    if (tn_dtype_is_integer(dtype))
        return;
    for (size_t l = 0; l < COUNT(lengths); l++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            region a = region_new(dtype, lengths[l], seed);
            size_t first, n;
            double norm, got;

            fill(dtype, a.p, lengths[l], seed);
            ck_assert_int_eq(tn_k_force("scalar", NULL), TN_OK);
            first = tn_k_first_nonfinite(dtype, a.p, lengths[l]);
            n = seed < 2 ? first : lengths[l];
            norm = tn_k_sumsq(dtype, a.p, n);
            for (size_t v = 0; v < VARIANTS; v++) {
                if (tn_k_force(variants[v], NULL) != TN_OK)
                    continue;
                ck_assert_uint_eq(tn_k_first_nonfinite(dtype, a.p, lengths[l]), first);
                got = tn_k_sumsq(dtype, a.p, n);
                ck_assert_msg(memcmp(&got, &norm, sizeof(got)) == 0, "%s %s n = %zu: %.17g, not %.17g",
                              tn_dtype_name(dtype), variants[v], n, got, norm);
            }
            region_release(&a);
        }
    }
}
END_TEST

/* fill's random codes end a run of finite numbers soon; sums over many blocks need a long one. */
START_TEST(long_norms) {
    static const size_t ns[] = {1, 8, 127, 128, 129, 256, 384, 1000, 1024, 5 * 128 + 3, MAX_N};
    float *x = malloc(MAX_N * sizeof(*x));
    uint64_t state = 7;

    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < MAX_N; i++)
        x[i] = (float)(int64_t)(next(&state) >> 20) * 0x1p-40F - 3.0F;
    for (size_t l = 0; l < COUNT(ns); l++) {
        double want, got;

        ck_assert_int_eq(tn_k_force("scalar", NULL), TN_OK);
        want = tn_k_sumsq(TN_F32, x, ns[l]);
        for (size_t v = 0; v < VARIANTS; v++) {
            if (tn_k_force(variants[v], NULL) != TN_OK)
                continue;
            got = tn_k_sumsq(TN_F32, x, ns[l]);
            ck_assert_msg(memcmp(&got, &want, sizeof(got)) == 0, "%s n = %zu: %.17g, not %.17g", variants[v], ns[l],
                          got, want);
        }
    }
    free(x);
}
END_TEST

int main(void) {
    Suite *s = suite_create("kernels/variants");
    TCase *tc = tcase_create("bits");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 120);
    suite_add_tcase(s, tc);
    tcase_add_loop_test(tc, reductions, 0, TN_DTYPE_COUNT);
    tcase_add_loop_test(tc, differences_and_multiples, 0, TN_DTYPE_COUNT);
    tcase_add_loop_test(tc, norms_and_nonfinite, 0, TN_DTYPE_COUNT);
    tcase_add_test(tc, long_norms);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

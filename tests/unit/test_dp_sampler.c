/* Discrete noise: against its probabilities, with seeds, so that a run that passes passes always. Each check
 * is also shown a distribution that is slightly wrong, and must see it. */
#include <check.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "privacy/privacy.h"
#include "privacy/dp_internal.h"

#define LEN(a) (sizeof(a) / sizeof((a)[0]))
#define DRAWS 400000

/* ChaCha20 keyed by a counter */
typedef struct seeded {
    uint64_t seed, block;
} seeded;

static void fill(void *arg, void *p, size_t n) {
    seeded *s = arg;
    uint8_t key[randombytes_SEEDBYTES] = {0};

    memcpy(key, &s->seed, sizeof(s->seed));
    memcpy(key + 8, &s->block, sizeof(s->block));
    s->block++;
    randombytes_buf_deterministic(p, n, key);
}

static int64_t *draw(tn_dp_sampled kind, double variance, uint64_t seed, size_t n) {
    seeded state = {seed, 0};
    tn_dp_random source = {fill, &state};
    tn_dp_sampler *s;
    tn_err err = TN_ERR_INIT;
    int64_t *out = malloc(n * sizeof(*out));

    ck_assert_ptr_nonnull(out);
    ck_assert_msg(tn_dp_sampler_new(&s, kind, variance, &source, &err) == TN_OK, "%s", err.msg);
    tn_dp_sample(s, out, n);
    tn_dp_sampler_free(s);
    return out;
}

/* ---- Expected probabilities, by series in floating point ---- */

static double gaussian_pmf(double variance, int64_t k) {
    double total = 0, far = ceil(40 * sqrt(variance)) + 10;

    for (double i = -far; i <= far; i++)
        total += exp(-i * i / (2 * variance));
    return exp(-(double)k * (double)k / (2 * variance)) / total;
}

static double poisson_pmf(double mean, int64_t k) {
    return k < 0 ? 0 : exp(-mean + (double)k * log(mean) - lgamma((double)k + 1));
}

static double skellam_pmf(double variance, int64_t k) {
    double p = 0;

    for (int64_t i = 0; i < (int64_t)(variance + 20 * sqrt(variance) + 60); i++)
        p += poisson_pmf(variance / 2, i) * poisson_pmf(variance / 2, i + (k < 0 ? -k : k));
    return p;
}

/* Pearson's statistic over values with at least 20 draws expected, all others together, turned into a standard
 * normal by Wilson and Hilferty's cube root. */
static double chi_square(const int64_t *x, size_t n, double (*pmf)(double, int64_t), double variance) {
    enum { SIDE = 600 };
    static size_t seen[2 * SIDE + 1];
    double statistic = 0, rest = 1, cells = 0, others = (double)n, k;

    memset(seen, 0, sizeof(seen));
    for (size_t i = 0; i < n; i++) {
        if (x[i] >= -SIDE && x[i] <= SIDE)
            seen[x[i] + SIDE]++;
    }
    for (int64_t v = -SIDE; v <= SIDE; v++) {
        double p = pmf(variance, v), expected = p * (double)n, got = (double)seen[v + SIDE];

        if (expected < 20)
            continue;
        statistic += (got - expected) * (got - expected) / expected;
        rest -= p;
        others -= got;
        cells++;
    }
    if (rest * (double)n > 5) {
        statistic += (others - rest * (double)n) * (others - rest * (double)n) / (rest * (double)n);
        cells++;
    }
    k = cells - 1;
    return (cbrt(statistic / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
}

static const double variances[] = {.3, 1, 4, 30.25, 100, 2000};

START_TEST(gaussian_distribution) {
    double v = variances[_i];
    int64_t *x = draw(TN_DP_SAMPLE_GAUSSIAN, v, 1 + (uint64_t)_i, DRAWS);

    ck_assert_double_lt(fabs(chi_square(x, DRAWS, gaussian_pmf, v)), 4);
    ck_assert_double_gt(chi_square(x, DRAWS, gaussian_pmf, v * 1.05),
                        4); /* sees 2.5 % of a standard deviation */
    free(x);
}
END_TEST

START_TEST(skellam_distribution) {
    double v = variances[_i];
    int64_t *x = draw(TN_DP_SAMPLE_SKELLAM, v, 11 + (uint64_t)_i, DRAWS);

    ck_assert_double_lt(fabs(chi_square(x, DRAWS, skellam_pmf, v)), 4);
    ck_assert_double_gt(chi_square(x, DRAWS, skellam_pmf, v * 1.05), 4);
    if (v < 10) /* while the two still differ */
        ck_assert_double_gt(chi_square(x, DRAWS, gaussian_pmf, v), 4);
    free(x);
}
END_TEST

/* PRIVACY's figures, within four standard deviations of a frequency */
START_TEST(gaussian_probabilities) {
    static const struct {
        double variance, p[3];
    } v[] = {
        {1, {.398942278267, .241970723224, .053990966224}},
        {4, {.199471140201, .176032663382, .120985362260}},
        {100, {.039894228040, .039695254748, .039104269398}},
    };

    for (size_t i = 0; i < LEN(v); i++) {
        int64_t *x = draw(TN_DP_SAMPLE_GAUSSIAN, v[i].variance, 100 + i, DRAWS);

        for (int64_t k = -2; k <= 2; k++) {
            double p = v[i].p[k < 0 ? -k : k], seen = 0;

            for (size_t j = 0; j < DRAWS; j++)
                seen += x[j] == k;
            ck_assert_double_eq_tol(gaussian_pmf(v[i].variance, k), p, 1e-12);
            ck_assert_double_eq_tol(seen / DRAWS, p, 4 * sqrt(p * (1 - p) / DRAWS));
        }
        free(x);
    }
}
END_TEST

static void check_moments(tn_dp_sampled kind, double variance, uint64_t seed, size_t n) {
    int64_t *x = draw(kind, variance, seed, n);
    double sum = 0, squares = 0, fourth = 0, root = sqrt(variance), count = (double)n;

    for (size_t i = 0; i < n; i++) {
        double y = (double)x[i] / root;

        sum += y;
        squares += y * y;
        fourth += y * y * y * y;
    }
    ck_assert_double_lt(fabs(sum / count), 4.5 / sqrt(count));
    ck_assert_double_lt(fabs(squares / count - 1), 4.5 * sqrt(2 / count));
    ck_assert_double_lt(fabs(fourth / count - 3), 4.5 * sqrt(96 / count));
    free(x);
}

START_TEST(large_variances) {
    check_moments(TN_DP_SAMPLE_GAUSSIAN, 0x1p48, 5, 50000);
    check_moments(TN_DP_SAMPLE_GAUSSIAN, 0x1p40 + 12345, 6, 50000);
    check_moments(TN_DP_SAMPLE_GAUSSIAN, 1e5, 7, 50000);
    check_moments(TN_DP_SAMPLE_SKELLAM, 0x1p29, 8, 50000);
    check_moments(TN_DP_SAMPLE_SKELLAM, 10485.76, 9, 50000);
}
END_TEST

/* Every bit of a large value is random, the low ones too. */
START_TEST(low_bits_are_uniform) {
    int64_t *x = draw(TN_DP_SAMPLE_GAUSSIAN, 0x1p40, 21, DRAWS);

    for (int bit = 0; bit < 16; bit++) {
        double ones = 0;

        for (size_t i = 0; i < DRAWS; i++)
            ones += (double)((uint64_t)x[i] >> bit & 1);
        ck_assert_double_eq_tol(ones / DRAWS, .5, 4.5 * .5 / sqrt(DRAWS));
    }
    free(x);
}
END_TEST

/* The weights are the probabilities, to the digits of a double. */
START_TEST(poisson_table) {
    static const double means[] = {.001, .5, 1, 7.25, 5243, 1e6};

    for (size_t i = 0; i < LEN(means); i++) {
        tni_poisson p = {0};
        uint64_t den = UINT64_C(1) << 30, num = (uint64_t)(means[i] * (double)den);
        double mean = (double)num / (double)den, total;

        ck_assert_int_eq(tni_poisson_init(&p, num, den, NULL), TN_OK);
        total = (double)p.upto[p.n - 1];
        for (size_t k = 0; k < p.n; k += 1 + p.n / 500) {
            double weight = (double)(p.upto[k] - (k > 0 ? p.upto[k - 1] : 0)),
                   want = poisson_pmf(mean, p.first + (int64_t)k);

            if (want > 1e-25) /* of lgamma, which loses digits in large arguments */
                ck_assert_double_eq_tol(weight / total / want, 1, 1e-8);
        }
        ck_assert(p.first == 0 || poisson_pmf(mean, p.first) < 1e-30);
        ck_assert_double_lt(poisson_pmf(mean, p.first + (int64_t)p.n), 1e-30);
        ck_assert_uint_eq((uint64_t)(p.upto[p.n - 1] >> 126), 0);
        tni_poisson_release(&p);
    }
}
END_TEST

/* ---- The trials, over all that their first bits can be ---- */

typedef struct pattern {
    uint16_t bits;
} pattern;

static void fill_pattern(void *arg, void *p, size_t n) {
    memset(p, 0, n);
    memcpy(p, &((pattern *)arg)->bits, sizeof(uint16_t));
}

START_TEST(bernoulli_is_exact) {
    static const struct {
        uint64_t a, of;
    } v[] = {{0, 1}, {1, 1}, {1, 2}, {1, 3}, {2, 3}, {5, 7}, {1, 1000}, {65535, 65536}, {12345, 1u << 31}};

    for (size_t i = 0; i < LEN(v); i++) {
        double yes = 0;

        for (unsigned word = 0; word < 65536; word++) {
            pattern state = {(uint16_t)word};
            tn_dp_random source = {fill_pattern, &state};
            tni_bits bits;

            tni_bits_init(&bits, &source);
            yes += tni_bernoulli(&bits, (tni_u128)v[i].a << 64, (tni_u128)v[i].of << 64);
        }
        ck_assert_double_eq_tol(yes / 65536, (double)v[i].a / (double)v[i].of, 1.0 / 65536);
    }
}
END_TEST

START_TEST(bernoulli_of_exponentials) {
    static const double x[] = {0, .25, .5, 1, 1.5, 3};
    seeded state = {77, 0};
    tn_dp_random source = {fill, &state};
    tni_bits bits;

    tni_bits_init(&bits, &source);
    for (size_t i = 0; i < LEN(x); i++) {
        double yes = 0, p = exp(-x[i]);

        for (size_t k = 0; k < DRAWS; k++)
            yes += tni_bernoulli_exp(&bits, (tni_u128)(x[i] * 4), 4);
        ck_assert_double_eq_tol(yes / DRAWS, p, 4 * sqrt(p * (1 - p) / DRAWS) + 1e-15);
    }
}
END_TEST

START_TEST(uniform_below) {
    seeded state = {78, 0};
    tn_dp_random source = {fill, &state};
    tni_bits bits;
    double seen[5] = {0};

    tni_bits_init(&bits, &source);
    ck_assert_uint_eq(tni_bits_below(&bits, 1), 0);
    for (size_t k = 0; k < DRAWS; k++)
        seen[tni_bits_below(&bits, 5)]++;
    for (size_t i = 0; i < LEN(seen); i++)
        ck_assert_double_eq_tol(seen[i] / DRAWS, .2, 4 * sqrt(.16 / DRAWS));
    for (size_t k = 0; k < 1000; k++)
        ck_assert(tni_bits_below(&bits, UINT64_MAX) != UINT64_MAX);
}
END_TEST

/* ---- Use ---- */

START_TEST(seeds_and_the_system) {
    int64_t *a = draw(TN_DP_SAMPLE_GAUSSIAN, 1e6, 3, 1000), *b = draw(TN_DP_SAMPLE_GAUSSIAN, 1e6, 3, 1000);
    tn_dp_sampler *one, *two;

    ck_assert_int_eq(memcmp(a, b, 1000 * sizeof(*a)), 0);
    for (int kind = TN_DP_SAMPLE_GAUSSIAN; kind <= TN_DP_SAMPLE_SKELLAM; kind++) { /* nothing repeats there */
        ck_assert_int_eq(tn_dp_sampler_new(&one, (tn_dp_sampled)kind, 1e6, NULL, NULL), TN_OK);
        ck_assert_int_eq(tn_dp_sampler_new(&two, (tn_dp_sampled)kind, 1e6, NULL, NULL), TN_OK);
        tn_dp_sample(one, a, 1000);
        tn_dp_sample(two, b, 1000);
        ck_assert_int_ne(memcmp(a, b, 1000 * sizeof(*a)), 0);
        tn_dp_sample(one, b, 1000);
        ck_assert_int_ne(memcmp(a, b, 1000 * sizeof(*a)), 0);
        tn_dp_sampler_free(one);
        tn_dp_sampler_free(two);
    }
    free(a);
    free(b);
}
END_TEST

START_TEST(variance_is_rounded_up) {
    static const double v[] = {1e-12, 1e-3, .1, 1, 10485.76, 123456.789, 0x1p29, 0x1p40 + .3, 0x1p48};
    tn_dp_sampler *s;

    for (size_t i = 0; i < LEN(v); i++) {
        for (int kind = TN_DP_SAMPLE_GAUSSIAN; kind <= TN_DP_SAMPLE_SKELLAM; kind++) {
            if (kind == TN_DP_SAMPLE_SKELLAM && v[i] > 0x1p29)
                continue;
            ck_assert_int_eq(tn_dp_sampler_new(&s, (tn_dp_sampled)kind, v[i], NULL, NULL), TN_OK);
            ck_assert_double_ge(tn_dp_sampler_variance(s), v[i]);
            ck_assert_double_le(tn_dp_sampler_variance(s), v[i] * (1 + 0x1p-20) + 0x1p-9);
            tn_dp_sampler_free(s);
        }
    }
}
END_TEST

START_TEST(refused) {
    static const double v[] = {0, -1, (double)NAN, HUGE_VAL, 0x1p49};
    tn_dp_sampler *s;
    tn_err err = TN_ERR_INIT;

    for (size_t i = 0; i < LEN(v); i++) {
        ck_assert_int_eq(tn_dp_sampler_new(&s, TN_DP_SAMPLE_GAUSSIAN, v[i], NULL, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "variance is"));
        ck_assert_ptr_null(s);
        ck_assert_int_eq(tn_dp_sampler_new(&s, TN_DP_SAMPLE_SKELLAM, v[i], NULL, &err), TN_EINVAL);
    }
    ck_assert_int_eq(tn_dp_sampler_new(&s, TN_DP_SAMPLE_SKELLAM, 0x1p30, NULL, &err), TN_EINVAL);
    tn_dp_sampler_free(NULL);
}
END_TEST

int main(void) {
    Suite *s = suite_create("dp_sampler");
    TCase *t = tcase_create("sampler");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, gaussian_distribution, 0, LEN(variances));
    tcase_add_loop_test(t, skellam_distribution, 0, LEN(variances));
    tcase_add_test(t, gaussian_probabilities);
    tcase_add_test(t, large_variances);
    tcase_add_test(t, low_bits_are_uniform);
    tcase_add_test(t, poisson_table);
    tcase_add_test(t, bernoulli_is_exact);
    tcase_add_test(t, bernoulli_of_exponentials);
    tcase_add_test(t, uniform_below);
    tcase_add_test(t, seeds_and_the_system);
    tcase_add_test(t, variance_is_rounded_up);
    tcase_add_test(t, refused);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

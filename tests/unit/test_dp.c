/* Clipping, noise on updates, adaptive clipping, local noise. Seeds make every figure the same in every run. */
#include <check.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "privacy/privacy.h"

#define LEN(a) (sizeof(a) / sizeof((a)[0]))
#define N 4096 /* numbers of the large tensor */

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

static seeded state;
static const tn_dp_random source = {fill, &state};
static tn_layout layout; /* one of each kind, so that every branch has its tensor */
static uint8_t *block, *out;
static int64_t *grid;

static void add(const char *name, tn_dtype dtype, int64_t n) {
    ck_assert_int_eq(tn_layout_add(&layout, name, dtype, 1, &n, NULL), TN_OK);
}

static void set_up(void) {
    state = (seeded){2026, 0};
    tn_layout_init(&layout);
    add("weight", TN_F32, N);
    add("double", TN_F64, 5);
    add("complex", TN_C64, 3);
    add("half", TN_F16, 7);
    add("bfloat", TN_BF16, 2);
    add("counter", TN_I64, 2);
    add("mask", TN_BOOL, 3);
    ck_assert_int_eq(tn_layout_seal(&layout, NULL), TN_OK);
    block = calloc(1, layout.nbytes);
    out = malloc(layout.nbytes);
    grid = malloc((N + 64) * sizeof(*grid));
    ck_assert(block != NULL && out != NULL && grid != NULL);
}

static void tear_down(void) {
    tn_layout_release(&layout);
    free(block);
    free(out);
    free(grid);
}

static void *at(uint8_t *p, const char *name) { return p + tn_layout_find(&layout, name)->offset; }

/* A block of roughly this norm, the counter at 1. */
static void random_block(uint8_t *p, double norm, unsigned seed) {
    memset(p, 0, layout.nbytes);
    for (size_t i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)at(p, "weight"))[i] = (float)(((double)(seed >> 8) / 0x1p23 - 1) * norm * 1.732 / sqrt(N));
    }
    for (size_t i = 0; i < 5; i++)
        ((double *)at(p, "double"))[i] = norm * 1e-3 * (double)i;
    ((float *)at(p, "complex"))[5] = (float)norm * 1e-3f;
    ((uint16_t *)at(p, "half"))[6] = 0x1400;   /* 2^-10 */
    ((uint16_t *)at(p, "bfloat"))[0] = 0xba80; /* -2^-10 */
    ((int64_t *)at(p, "counter"))[0] = 1;
}

START_TEST(grid_keeps_its_bound) {
    static const double norms[] = {0, 1e-6, .5, .999999, 1, 1.000001, 3, 1e6, 1e30};
    static const double noises[] = {.01, 1, 50};
    tn_dp_grid g;
    bool within;

    for (size_t i = 0; i < LEN(norms) * LEN(noises); i++) {
        double norm, longest, sum = 0, clip = .7;

        random_block(block, norms[i % LEN(norms)] * clip, (unsigned)i);
        ck_assert_int_eq(tn_dp_grid_init(&g, &layout, clip, noises[i / LEN(norms)], NULL), TN_OK);
        ck_assert_uint_eq(g.dimension, N + 5 + 6 + 7 + 2);
        ck_assert_double_eq_tol(g.sigma / g.bound, noises[i / LEN(norms)], 1e-9);
        tn_dp_to_grid(&g, &layout, block, grid, &within);
        norm = tn_dp_norm(&layout, block);
        ck_assert(within == (norm <= clip));
        for (size_t k = 0; k < g.dimension; k++)
            sum += (double)grid[k] * (double)grid[k];
        ck_assert_double_le(sqrt(sum), g.bound);
        longest = fmin(norm, clip) / g.step;
        ck_assert_double_eq_tol(sqrt(sum), longest, 1e-6 * longest + sqrt((double)g.dimension));
        /* rounding costs little: the bound is hardly above the clip */
        ck_assert_double_le(g.bound * g.step, clip * 1.001);
    }
}
END_TEST

/* The worst case for rounding: every number lies just above the middle between two grid points, at the clip. */
START_TEST(grid_bound_at_its_worst) {
    tn_dp_grid g;
    double sum = 0, each;
    float *w = at(block, "weight");

    ck_assert_int_eq(tn_dp_grid_init(&g, &layout, 1, 1e3, NULL), TN_OK); /* coarse, so that it matters */
    each = (floor(1 / sqrt(N) / g.step) - .5 + 1e-3) * g.step;
    for (size_t i = 0; i < N; i++)
        w[i] = (float)each;
    ck_assert_double_le(tn_dp_norm(&layout, block), 1);
    tn_dp_to_grid(&g, &layout, block, grid, NULL);
    for (size_t k = 0; k < g.dimension; k++)
        sum += (double)grid[k] * (double)grid[k];
    ck_assert_double_gt(sqrt(sum), tn_dp_norm(&layout, block) / g.step); /* longer than it was */
    ck_assert_double_le(sqrt(sum), g.bound);
}
END_TEST

START_TEST(back_from_the_grid) {
    tn_dp_grid g;

    random_block(block, .5, 3);
    ck_assert_int_eq(tn_dp_grid_init(&g, &layout, 1, 1, NULL), TN_OK);
    tn_dp_to_grid(&g, &layout, block, grid, NULL);
    memset(out, 0xff, layout.nbytes);
    tn_dp_from_grid(&layout, grid, g.step, out);
    for (size_t i = 0; i < N; i++)
        ck_assert_double_eq_tol((double)((float *)at(out, "weight"))[i],
                                (double)((float *)at(block, "weight"))[i], g.step);
    ck_assert_double_eq_tol(((double *)at(out, "double"))[4], .002, g.step);
    ck_assert_double_eq_tol((double)((float *)at(out, "complex"))[5], 5e-4, g.step);
    ck_assert_uint_eq(((uint16_t *)at(out, "half"))[6], 0x1400);
    ck_assert_uint_eq(((uint16_t *)at(out, "bfloat"))[0], 0xba80);
    ck_assert_int_eq(((int64_t *)at(out, "counter"))[0], 0);
    ck_assert_int_eq(((uint8_t *)at(out, "mask"))[0], 0);
}
END_TEST

static double spread(const uint8_t *p) { /* of the large tensor around 0 */
    double sum = 0;

    for (size_t i = 0; i < N; i++) {
        double x = (double)((const float *)(const void *)(p + tn_layout_find(&layout, "weight")->offset))[i];

        sum += x * x;
    }
    return sqrt(sum / N);
}

START_TEST(mean_of_clipped_updates) {
    enum { CLIENTS = 20 };
    static const void *update[CLIENTS];
    size_t apart = (layout.nbytes + 15) / 16 * 16; /* so that each is aligned */
    uint8_t *all = malloc(CLIENTS * apart);
    double want[N] = {0};
    uint64_t within;
    tn_dp_grid g;

    ck_assert_ptr_nonnull(all);
    ck_assert_int_eq(tn_dp_grid_init(&g, &layout, .5, .01, NULL), TN_OK);
    for (size_t k = 0; k < CLIENTS; k++) {
        uint8_t *p = all + k * apart;
        double norm;

        random_block(p, k < 8 ? .1 : 40, (unsigned)k + 9);
        update[k] = p;
        norm = tn_dp_norm(&layout, p);
        for (size_t i = 0; i < N; i++)
            want[i] += (double)((float *)at(p, "weight"))[i] * fmin(1, .5 / norm) / 25;
    }
    ck_assert_int_eq(tn_dp_mean(&g, &layout, update, CLIENTS, 25, &source, out, &within, NULL), TN_OK);
    ck_assert_uint_eq(within, 8);
    for (size_t i = 0; i < N; i++) /* noise .01 * .5 / 25 = 2e-4 */
        ck_assert_double_eq_tol((double)((float *)at(out, "weight"))[i], want[i], 5 * 2e-4);
    ck_assert_int_eq(((int64_t *)at(out, "counter"))[0], 0);
    ck_assert_int_eq(((uint8_t *)at(out, "mask"))[2], 0);
    free(all);
}
END_TEST

/* Flower's compute_stdv: z = 1, C = .5, m = 50 gives .01. And a round with nobody in it is noise alone. */
START_TEST(noise_of_a_mean) {
    const void *update[1] = {block};
    uint64_t within = 7;
    tn_dp_grid g;

    ck_assert_int_eq(tn_dp_grid_init(&g, &layout, .5, 1, NULL), TN_OK);
    ck_assert_int_eq(tn_dp_mean(&g, &layout, NULL, 0, 50, &source, out, &within, NULL), TN_OK);
    ck_assert_uint_eq(within, 0);
    ck_assert_double_eq_tol(spread(out), .01, .01 * 4.5 / sqrt(2 * N));
    ck_assert_int_eq(tn_dp_mean(&g, &layout, update, 1, 50, &source, out, &within, NULL), TN_OK); /* of zeros */
    ck_assert_uint_eq(within, 1);
    ck_assert_double_eq_tol(spread(out), .01, .01 * 4.5 / sqrt(2 * N));
}
END_TEST

START_TEST(noise_in_shares) {
    enum { SHARES = 8 };
    static int64_t part[N];
    double sum[N] = {0}, squares = 0;
    tn_dp_sampler *s;
    tn_dp_grid g;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_dp_grid_init(&g, &layout, 1, 2, NULL), TN_OK);
    for (int k = 0; k < SHARES; k++) {
        ck_assert_int_eq(tn_dp_grid_noise(&g, 1.0 / SHARES, &source, &s, NULL), TN_OK);
        tn_dp_sample(s, part, N);
        tn_dp_sampler_free(s);
        for (size_t i = 0; i < N; i++)
            sum[i] += (double)part[i];
    }
    for (size_t i = 0; i < N; i++)
        squares += sum[i] * sum[i] / N;
    ck_assert_double_eq_tol(sqrt(squares) / g.sigma, 1, 4.5 / sqrt(2 * N));
    ck_assert_int_eq(tn_dp_grid_noise(&g, 0, &source, &s, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "share"));
}
END_TEST

/* ---- Adaptive clipping ---- */

static const tn_dp_adaptive usual = {.quantile = .5, .rate = .2, .sigma = 5};

START_TEST(adaptive_formulas) {
    tn_dp_adaptive a = usual;
    double z, clip = .1;

    clip = tn_dp_adaptive_clip(&a, clip, .9);
    ck_assert_double_eq_tol(clip, .0923116346, 1e-10);
    clip = tn_dp_adaptive_clip(&a, clip, .6);
    ck_assert_double_eq_tol(clip, .0904837418, 1e-10);
    clip = tn_dp_adaptive_clip(&a, clip, .2);
    ck_assert_double_eq_tol(clip, .0960789439, 1e-10);
    ck_assert_int_eq(tn_dp_adaptive_split(&a, 1, &z, NULL), TN_OK);
    ck_assert_double_eq_tol(z, 1.005037815, 1e-9);
    a.sigma = 50;
    ck_assert_int_eq(tn_dp_adaptive_split(&a, .5, &z, NULL), TN_OK);
    ck_assert_double_eq_tol(z, .500006250, 1e-9);
}
END_TEST

/* The sign: clip moves towards the median of the norms from both sides, and stays there. */
START_TEST(adaptive_finds_the_median) {
    static const double starts[] = {.01, 100};
    tn_dp_adaptive a = usual;

    for (size_t i = 0; i < LEN(starts); i++) {
        double clip = starts[i], before;

        for (int round = 0; round < 150; round++) {
            uint64_t within = 0;

            for (int k = 1; k <= 100; k++) /* norms .02 to 2, median 1 */
                within += .02 * k <= clip;
            before = clip;
            ck_assert_int_eq(tn_dp_adapt(&a, clip, within, 100, 100, &source, &clip, NULL), TN_OK);
            if (round < 10)
                ck_assert(i == 0 ? clip > before : clip < before);
        }
        ck_assert_double_eq_tol(clip, 1, .15);
    }
}
END_TEST

START_TEST(adaptive_noise) {
    tn_dp_adaptive a = {.5, 1, 5};
    double sum = 0, squares = 0, share;

    for (int i = 0; i < 2000; i++) { /* what it says of the share: 30 of 100, with sigma 5 / 100 */
        double next;

        ck_assert_int_eq(tn_dp_adapt(&a, 1, 30, 100, 100, &source, &next, NULL), TN_OK);
        share = .5 - log(next);
        sum += share / 2000;
        squares += (share - .3) * (share - .3) / 2000;
    }
    ck_assert_double_eq_tol(sum, .3, 4.5 * .05 / sqrt(2000));
    ck_assert_double_eq_tol(sqrt(squares), .05, 4.5 * .05 / sqrt(4000));
}
END_TEST

/* ---- Local ---- */

START_TEST(local_noise) {
    tn_dp_local p = {.clip = 2, .epsilon = 1, .delta = 1e-5};
    tn_dp_grid g;

    random_block(block, 1, 5);
    memcpy(out, block, layout.nbytes);
    ck_assert_int_eq(tn_dp_randomise(&p, &layout, &source, out, NULL), TN_OK);
    for (size_t i = 0; i < N; i++)
        ((float *)at(out, "weight"))[i] -= ((float *)at(block, "weight"))[i];
    /* the sensitivity of a replacement is twice the clip */
    ck_assert_double_eq_tol(spread(out) / (2 * 2 * 3.730631635), 1, 4.5 / sqrt(2 * N));
    ck_assert_int_eq(((int64_t *)at(out, "counter"))[0], 0);
    ck_assert_int_eq(tn_dp_local_check(&p, &layout, &g, NULL), TN_OK);
    ck_assert_double_eq_tol(g.sigma / (2 * g.bound), 3.730631635, 1e-6);
    ck_assert_double_ge(g.sigma, 0x1p23);
}
END_TEST

/* How far the discrete Gaussian is from a rounded one, by their relative entropy; Pinsker's inequality makes of
 * dimension times 1 / (450 sigma^4) a total variation distance of sqrt(dimension) / (30 sigma^2). */
START_TEST(discrete_and_rounded_gaussians) {
    static const double sigmas[] = {3, 6, 12, 25};

    for (size_t i = 0; i < LEN(sigmas); i++) {
        double s = sigmas[i], total = 0, entropy = 0;

        for (double k = -ceil(12 * s); k <= 12 * s; k++)
            total += exp(-k * k / (2 * s * s));
        for (double k = -ceil(8 * s); k <= 8 * s; k++) {
            double d = exp(-k * k / (2 * s * s)) / total;
            double r = (erfc((fabs(k) - .5) / s / sqrt(2)) - erfc((fabs(k) + .5) / s / sqrt(2))) / 2;

            entropy += r * (log1p((r - d) / d) - 1 + d / r); /* the added terms sum to 0, each is >= 0 so */
        }
        ck_assert_double_le(entropy, 1 / (450 * pow(s, 4)));
        ck_assert_double_ge(entropy, 1 / (1000 * pow(s, 4)));
    }
}
END_TEST

/* ---- Shares ---- */

static const tn_dp_distributed skellam = {TN_DP_SKELLAM, 1024, .05, 10, 1, .60653065971263342, N + 20};

/* The sum is the sum of the vectors, with the noise of ten shares, whatever the kind. */
START_TEST(shares_add_up) {
    enum { CLIENTS = 10 };

    for (int kind = TN_DP_SKELLAM; kind <= TN_DP_SHARED_DISCRETE_GAUSSIAN; kind++) {
        tn_dp_distributed d = skellam;
        double sum[N + 20] = {0}, want[N + 20] = {0}, squares = 0, off = 0;

        d.noise = (tn_dp_shared)kind;
        for (int k = 0; k < CLIENTS; k++) {
            tn_dp_grid g;
            double norm;

            random_block(block, k < 5 ? .5 : 9, (unsigned)k + 40);
            norm = tn_dp_norm(&layout, block);
            ck_assert_int_eq(tn_dp_share(&d, &layout, block, &source, grid, NULL), TN_OK);
            for (size_t i = 0; i < d.dimension; i++)
                sum[i] += (double)grid[i] / d.scale;
            ck_assert_int_eq(tn_dp_grid_init(&g, &layout, 1e6, 1, NULL),
                             TN_OK); /* to read the numbers in order */
            tn_dp_to_grid(&g, &layout, block, grid, NULL);
            for (size_t i = 0; i < d.dimension; i++)
                want[i] += (double)grid[i] * g.step * fmin(1, 1 / norm);
        }
        for (size_t i = 0; i < d.dimension; i++) {
            off += (sum[i] - want[i]) / (double)d.dimension;
            squares += (sum[i] - want[i]) * (sum[i] - want[i]) / (double)d.dimension;
        }
        /* and rounding's variance, at most a quarter of a squared step a client, is far below it */
        ck_assert_double_eq_tol(sqrt(squares), d.sigma * sqrt(CLIENTS), .06 * d.sigma * sqrt(CLIENTS));
        ck_assert_double_lt(fabs(off), 4.5 * d.sigma * sqrt(CLIENTS) / sqrt(N));
    }
}
END_TEST

/* Rounding alone (the noise of 1e-6 is none on this grid): unbiased, and within the bound that is accounted
 * for. */
START_TEST(shares_are_rounded_within_the_bound) {
    tn_dp_distributed d = skellam;
    double mean[N + 20] = {0}, worst = 0;
    tn_dp_bounds b;

    d.scale = 16;
    d.sigma = 1e-7;
    random_block(block, 30, 77);
    ck_assert_int_eq(tn_dp_rounded_bounds(&d, &b, NULL), TN_OK);
    for (int round = 0; round < 200; round++) {
        double squares = 0, ones = 0;

        ck_assert_int_eq(tn_dp_share(&d, &layout, block, &source, grid, NULL), TN_OK);
        for (size_t i = 0; i < d.dimension; i++) {
            squares += (double)grid[i] * (double)grid[i];
            ones += fabs((double)grid[i]);
            mean[i] += (double)grid[i] / 200;
        }
        ck_assert_double_le(sqrt(squares), b.l2);
        ck_assert_double_le(ones, b.l1);
    }
    for (size_t i = 0; i < 5; i++) /* the largest tensor comes second: the doubles lie before it */
        worst =
            fmax(worst, fabs(mean[i] - ((double *)at(block, "double"))[i] * 16 / tn_dp_norm(&layout, block)));
    ck_assert_double_lt(worst, 4.5 * .5 / sqrt(200));
}
END_TEST

START_TEST(shares_for_the_fewest_survivors) {
    tn_dp_distributed d = skellam;
    tn_dp_spent spent;
    double few, many;
    unsigned bits;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_dp_distributed_calibrate(&d, 5, 20, 1e-5, &few, NULL), TN_OK);
    d.sigma = few;
    ck_assert_int_eq(tn_dp_distributed_epsilon(&d, 20, 1e-5, NULL, 0, &spent, NULL), TN_OK);
    ck_assert_double_le(spent.epsilon, 5);
    ck_assert_double_ge(spent.epsilon, 4.99);
    d.clients = 40; /* four times the survivors: half the noise each */
    ck_assert_int_eq(tn_dp_distributed_calibrate(&d, 5, 20, 1e-5, &many, NULL), TN_OK);
    ck_assert_double_eq_tol(few / many, 2, .01);

    ck_assert_int_eq(tn_dp_distributed_bits(&skellam, 10, &bits, NULL), TN_OK);
    ck_assert_uint_eq(bits, 15); /* 10 * 1024.6 + 12 * 51 * sqrt(10) is between 2^13 and 2^14 */
    d = skellam;
    d.scale = 0x1p60;
    ck_assert_int_eq(tn_dp_distributed_bits(&d, 100, &bits, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "more than 64 bits"));
    ck_assert_int_eq(tn_dp_share(&d, &layout, block, &source, grid, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "scale is"));
    d = skellam;
    d.dimension = 3;
    ck_assert_int_eq(tn_dp_share(&d, &layout, block, &source, grid, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "dimension is 3"));
    ck_assert_int_eq(tn_dp_distributed_calibrate(&skellam, 1e-3, 20, 1e-12, &few, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "no sigma"));
}
END_TEST

/* ---- What is refused ---- */

START_TEST(refused_by_name) {
    static const double bad[] = {0, -1, (double)NAN, HUGE_VAL};
    tn_layout counters;
    tn_dp_adaptive a = usual;
    tn_dp_local p;
    tn_dp_grid g;
    uint64_t within;
    int64_t one = 1;
    double x;
    tn_err err = TN_ERR_INIT;

    for (size_t i = 0; i < LEN(bad); i++) {
        ck_assert_int_eq(tn_dp_grid_init(&g, &layout, bad[i], 1, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "clip is"));
        ck_assert_int_eq(tn_dp_grid_init(&g, &layout, 1, bad[i], &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "noise is"));
        a.rate = bad[i];
        ck_assert_int_eq(tn_dp_adaptive_split(&a, 1, &x, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "rate is"));
        a = usual;
        a.quantile = bad[i];
        ck_assert_int_eq(tn_dp_adaptive_split(&a, 1, &x, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "quantile is"));
        a = usual;
        p = (tn_dp_local){1, bad[i], 1e-5};
        ck_assert_int_eq(tn_dp_randomise(&p, &layout, &source, block, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "epsilon is"));
        p = (tn_dp_local){1, 1, bad[i]};
        ck_assert_int_eq(tn_dp_randomise(&p, &layout, &source, block, &err), TN_EINVAL);
        ck_assert_ptr_nonnull(strstr(err.msg, "delta is"));
    }
    ck_assert_int_eq(tn_dp_grid_init(&g, &layout, 1, 1, NULL), TN_OK);
    ck_assert_int_eq(tn_dp_mean(&g, &layout, NULL, 0, 0, &source, out, &within, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "denominator is"));
    a.sigma = .5; /* eats the whole noise */
    ck_assert_int_eq(tn_dp_adaptive_split(&a, 1, &x, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "sigma of the count is 0.5"));
    p = (tn_dp_local){1, 100, 1e-5};
    ck_assert_int_eq(tn_dp_randomise(&p, &layout, &source, block, &err), TN_EINVAL); /* e^100 times the gap */
    ck_assert_ptr_nonnull(strstr(err.msg, "delta is"));
    tn_layout_init(&counters);
    ck_assert_int_eq(tn_layout_add(&counters, "n", TN_I64, 1, &one, NULL), TN_OK);
    ck_assert_int_eq(tn_layout_seal(&counters, NULL), TN_OK);
    ck_assert_int_eq(tn_dp_grid_init(&g, &counters, 1, 1, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "no floating-point tensor"));
    tn_layout_release(&counters);
}
END_TEST

/* ---- The kernels underneath ---- */

START_TEST(fixed_point) {
    static const double in[] = {0, .5, -.5, 1.5, -1.5, 2.5, 100.25, -7};
    static const int64_t rounded[] = {0, 0, 0, 2, -2, 2, 100, -7}; /* ties to even */
    static const tn_dtype dtypes[] = {TN_F64, TN_F32, TN_F16, TN_BF16, TN_C64, TN_C128};
    static const int64_t whole[] = {0, 1, -3, 2048, -96};
    double values[LEN(in)], big[2] = {1e300, -1e300};
    int64_t got[LEN(in)];

    for (size_t i = 0; i < LEN(dtypes); i++) {
        int64_t back[LEN(whole)];
        uint8_t bytes[LEN(whole) * 8];

        tn_k_from_fixed(dtypes[i], bytes, whole, .25, LEN(whole));
        tn_k_to_fixed(dtypes[i], back, bytes, 4, LEN(whole));
        ck_assert_int_eq(memcmp(back, whole, sizeof(whole)), 0);
    }
    memcpy(values, in, sizeof(in));
    tn_k_to_fixed(TN_F64, got, values, 1, LEN(in));
    ck_assert_int_eq(memcmp(got, rounded, sizeof(rounded)), 0);
    tn_k_to_fixed(TN_F64, got, big, 1, 2);
    ck_assert(got[0] == INT64_C(1) << 62 && got[1] == -(INT64_C(1) << 62));
}
END_TEST

int main(void) {
    Suite *s = suite_create("dp");
    TCase *t = tcase_create("updates");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, grid_keeps_its_bound);
    tcase_add_test(t, grid_bound_at_its_worst);
    tcase_add_test(t, back_from_the_grid);
    tcase_add_test(t, mean_of_clipped_updates);
    tcase_add_test(t, noise_of_a_mean);
    tcase_add_test(t, noise_in_shares);
    tcase_add_test(t, adaptive_formulas);
    tcase_add_test(t, adaptive_finds_the_median);
    tcase_add_test(t, adaptive_noise);
    tcase_add_test(t, local_noise);
    tcase_add_test(t, discrete_and_rounded_gaussians);
    tcase_add_test(t, shares_add_up);
    tcase_add_test(t, shares_are_rounded_within_the_bound);
    tcase_add_test(t, shares_for_the_fewest_survivors);
    tcase_add_test(t, refused_by_name);
    tcase_add_test(t, fixed_point);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

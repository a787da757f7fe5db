/* Differential privacy: what a job has spent (accountants), and the noise and the clipping that spend it.
 *
 * Pure computations without I/O, but for the noise, whose randomness is the operating system's. Any thread.
 * Part of privacy/privacy.h, which is what other modules include.
 *
 * Neighbours are data sets that differ by one participant, added or removed. A number out of range, NaN
 * included, is TN_EINVAL with the name of the parameter and what it may be. */
#ifndef TN_PRIVACY_DP_H
#define TN_PRIVACY_DP_H

#include <stddef.h>
#include <stdint.h>

#include "core/layout.h"

/* ---- Accountants ---- */

typedef enum tn_dp_noise {
    TN_DP_GAUSSIAN,          /* real numbers */
    TN_DP_DISCRETE_GAUSSIAN, /* integers: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential
                                Privacy", 2020 */
} tn_dp_noise;

/* One query, asked `count` times: each participant is in it with probability q, independently of all others
 * (Poisson sampling; a fixed number out of all is something else), and noise covers the sum. */
typedef struct tn_dp_step {
    tn_dp_noise noise;
    double q;             /* (0, 1]; 1: everybody, no amplification */
    double sigma;         /* standard deviation of the noise over the L2 sensitivity: [0.01, 1e6] */
    uint64_t count;       /* 0 to 1e9 */
    uint32_t sensitivity; /* of the discrete Gaussian in TN_DP_PLD: 1 to 1e6 units of its grid; else not read */
} tn_dp_step;

typedef enum tn_dp_accountant {
    TN_DP_RDP, /* Renyi divergences at some orders: fast, composes by addition, a few per cent too high */
    TN_DP_PLD, /* the distribution of the privacy loss: close to the truth, tenths of a second */
} tn_dp_accountant;

typedef struct tn_dp_spent {
    double epsilon;
    double order; /* TN_DP_RDP: at which the smallest epsilon was found; else 0 */
} tn_dp_spent;

/* The epsilon of all steps together at delta in (0, 1). An upper bound: never less than what was spent, up to
 * rounding (1e-9).
 *
 * TN_DP_RDP: the Renyi divergence of the Poisson-sampled Gaussian (Mironov, Talwar and Zhang, "Renyi
 * Differential Privacy of the Sampled Gaussian Mechanism", 2019) at each order, converted by Proposition 12 of
 * Canonne, Kamath and Steinke. Integer orders by their finite sum, others by integrating its definition: the
 * integrand is positive, so nothing cancels and every order converges. The sampled discrete Gaussian has the
 * bound of the next integer order. `orders`: each in (1, 1e5], at most 10000; NULL: tn_dp_orders.
 *
 * TN_DP_PLD: the loss on a grid that preserves both probabilities in every cell ("Connect the dots": Doroshenko
 * et al., 2022), composed by FFT of the exponentially tilted distribution, so that small deltas keep their
 * digits; for removal and for addition, and the larger of both. sigma at least 0.1; `orders` must be NULL. The
 * discrete Gaussian: of a query with one integer as its answer. */
TN_API tn_code tn_dp_epsilon(tn_dp_accountant how, const tn_dp_step *step, size_t nsteps, double delta,
                             const double *orders, size_t norders, tn_dp_spent *out, tn_err *err);
/* The smallest sigma (to 1e-6 relative, rounded up; TN_DP_PLD 1e-4) with which `count` steps at q stay within
 * epsilon > 0. TN_EINVAL too when no sigma does with these orders. */
TN_API tn_code tn_dp_calibrate(tn_dp_accountant how, double epsilon, double q, uint64_t count, double delta,
                               const double *orders, size_t norders, double *sigma, tn_err *err);
/* The default: 1.1 to 10.9 by 0.1, 11 to 63, 128, 256, 512 and 1024. */
TN_API const double *tn_dp_orders(size_t *n);
/* The Renyi divergence of one step at one order. */
TN_API tn_code tn_dp_rdp(const tn_dp_step *step, double order, double *rdp, tn_err *err);
/* The Gaussian mechanism with sensitivity 1, once: exact, for every epsilon (Balle and Wang, "Improving the
 * Gaussian Mechanism for Differential Privacy", ICML 2018). Epsilon in (0, 1e4], delta in (0, 1). */
TN_API tn_code tn_dp_gaussian_sigma(double epsilon, double delta, double *sigma, tn_err *err);
TN_API tn_code tn_dp_gaussian_epsilon(double sigma, double delta, double *epsilon, tn_err *err);

/* Noise that each of n clients adds its share of, on integers, before a secure sum (Kairouz, Liu and Steinke,
 * "The Distributed Discrete Gaussian Mechanism", ICML 2021; Agarwal, Kairouz and Liu, "The Skellam Mechanism",
 * NeurIPS 2021). Vectors are scaled by `scale`, rounded at random to integers and drawn again until their norm
 * is in a bound. */
typedef enum tn_dp_shared { TN_DP_SKELLAM, TN_DP_SHARED_DISCRETE_GAUSSIAN } tn_dp_shared;
typedef struct tn_dp_distributed {
    tn_dp_shared noise;
    double scale;       /* grid points per unit: > 0 */
    double sigma;       /* of one client's share, in units before scaling: > 0 */
    uint64_t clients;   /* how many shares are in the sum at least: the minimum of survivors, not the cohort */
    double clip;        /* L2 bound of a client's vector, in units: > 0 */
    double beta;        /* [0, 1): how unlikely a rounding may be refused; 0: none is */
    uint64_t dimension; /* >= 1 */
} tn_dp_distributed;
typedef struct tn_dp_bounds {
    double l1, l2;
} tn_dp_bounds; /* norms of the rounded vector, in grid points */
TN_API tn_code tn_dp_rounded_bounds(const tn_dp_distributed *d, tn_dp_bounds *out, tn_err *err);
/* As tn_dp_epsilon with TN_DP_RDP and q = 1. orders: integers for Skellam (else TN_EINVAL); NULL: 2 to 128,
 * 256. */
TN_API tn_code tn_dp_distributed_epsilon(const tn_dp_distributed *d, uint64_t count, double delta,
                                         const double *orders, size_t norders, tn_dp_spent *out, tn_err *err);

/* ---- Noise ----
 *
 * Integers only, from random bits by integer arithmetic: nothing is ever added as a floating-point number,
 * whose low bits would tell what it was added to (Mironov, "On Significance of the Least Significant Bits
 * for Differential Privacy", 2012). Draws take a time that depends on their value, so they are made in
 * batches. */

/* Fills p with n random bytes. For tests, whose seeds are to give the same noise again; all else takes the
 * operating system's generator. */
typedef struct tn_dp_random {
    void (*fill)(void *arg, void *p, size_t n);
    void *arg;
} tn_dp_random;

typedef enum tn_dp_sampled {
    /* P(k) in proportion to exp(-k^2 / 2v): exact, by rejection from the discrete Laplace distribution with
     * Bernoulli trials of rational and exponential probabilities (Canonne, Kamath and Steinke 2020,
     * algorithms 1 to 3). v up to 2^48. (A proposal beyond 64 standard deviations is refused at once, where
     * the trial would accept it with probability 2^-2800.) */
    TN_DP_SAMPLE_GAUSSIAN,
    /* The difference of two Poisson variables with mean v/2 each, drawn from a table of integer weights of
     * 128 bits in all: its total variation distance from a Poisson distribution is below 2^-80. v up to
     * 2^29; the table has about 20 sqrt(v) entries of 16 bytes. */
    TN_DP_SAMPLE_SKELLAM,
} tn_dp_sampled;

typedef struct tn_dp_sampler tn_dp_sampler; /* one thread at a time; in a forked child make a new one */
/* variance > 0. It is rounded up to a fraction that the arithmetic can hold (by less than 2^-9 absolutely and
 * 2^-20 relatively); tn_dp_sampler_variance tells. source: NULL: the operating system's; else copied. */
TN_API tn_code tn_dp_sampler_new(tn_dp_sampler **out, tn_dp_sampled kind, double variance,
                                 const tn_dp_random *source, tn_err *err);
TN_API void tn_dp_sampler_free(tn_dp_sampler *s); /* wipes what it holds of randomness */
TN_API double tn_dp_sampler_variance(const tn_dp_sampler *s);
TN_API void tn_dp_sample(tn_dp_sampler *s, int64_t *out, size_t n);

/* ---- Updates: clipped, on a grid, with noise ----
 *
 * Everything below works on the floating-point tensors of a model's block together, as one vector. Other
 * tensors (counters, masks) cannot be protected by a sum: their changes are dropped, so the model keeps what
 * it has. An update must be finite (tn_update_check).
 *
 * An update is scaled to norm `clip` where it is longer, and rounded to integers on a grid. Rounding adds to
 * the norm: `bound` is what no rounded update exceeds, and noise is sigma = noise * bound, about 2^23 grid
 * points, so that the grid is 2^-23 of the noise and rounding costs about sqrt(dimension) noise / 2^24 of
 * it. */
typedef struct tn_dp_grid {
    double clip;
    double step;        /* width of the grid, in units of the update */
    double bound;       /* L2 norm of what tn_dp_to_grid gives, in steps: at most */
    double sigma;       /* of the noise, in steps */
    uint64_t dimension; /* numbers in the vector (a complex element is two) */
} tn_dp_grid;

/* clip > 0 and noise, the multiplier, in [0.01, 1e4]. TN_EINVAL when the model has no floating-point tensor,
 * or the noise is so large for its size that the grid would be too coarse. */
TN_API tn_code tn_dp_grid_init(tn_dp_grid *g, const tn_layout *l, double clip, double noise, tn_err *err);
/* The L2 norm of a block's floating-point tensors. */
TN_API double tn_dp_norm(const tn_layout *l, const void *block);
/* out has `dimension` integers. *within (may be NULL): whether the norm was at most clip. */
TN_API void tn_dp_to_grid(const tn_dp_grid *g, const tn_layout *l, const void *block, int64_t *out,
                          bool *within);
/* Integers times `factor`, as a block: delta[i] = in[i] * factor, other tensors 0. */
TN_API void tn_dp_from_grid(const tn_layout *l, const int64_t *in, double factor, void *delta);
/* The noise of that grid: the discrete Gaussian with `sigma`; with share in (0, 1], of variance share *
 * sigma^2. */
TN_API tn_code tn_dp_grid_noise(const tn_dp_grid *g, double share, const tn_dp_random *source,
                                tn_dp_sampler **out, tn_err *err);

/* Central: the sum of n >= 0 clipped updates and of noise, over a denominator > 0 that is fixed before the
 * round (McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018). All
 * updates count the same, whatever their examples: a weight would be a factor on the sensitivity. Spends one
 * tn_dp_step of the discrete Gaussian with sigma = noise. Reads the updates block by block, twice; takes
 * about 1.5 MB. *within: how many were not longer than clip. */
TN_API tn_code tn_dp_mean(const tn_dp_grid *g, const tn_layout *l, const void *const *update, size_t n,
                          double denominator, const tn_dp_random *source, void *mean, uint64_t *within,
                          tn_err *err);

/* Adaptive clipping (Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive
 * Clipping", NeurIPS 2021): the norm follows a quantile of the updates' norms. `within` counts those that
 * were NOT clipped: when they are more than the quantile, clip shrinks. */
typedef struct tn_dp_adaptive {
    double quantile; /* (0, 1); 0.5 */
    double rate;     /* (0, 1]; 0.2 */
    double sigma;    /* of the noise on the count; denominator / 20 */
} tn_dp_adaptive;
/* Half a count has sensitivity 1/2, so its multiplier is 2 sigma. The updates' multiplier for which both
 * together spend what `noise` alone does: (noise^-2 - (2 sigma)^-2)^-1/2; TN_EINVAL when sigma is not above
 * noise / 2. */
TN_API tn_code tn_dp_adaptive_split(const tn_dp_adaptive *a, double noise, double *multiplier, tn_err *err);
/* The formula alone: clip exp(-rate (share - quantile)). */
TN_API double tn_dp_adaptive_clip(const tn_dp_adaptive *a, double clip, double share);
/* With the noise: of n updates `within` were not clipped. */
TN_API tn_code tn_dp_adapt(const tn_dp_adaptive *a, double clip, uint64_t within, uint64_t n,
                           double denominator, const tn_dp_random *source, double *next, tn_err *err);

/* Local: delta, in place, so noisy that whoever sees it learns little of the client: (epsilon, delta) for
 * any two updates (sensitivity twice the bound), by the analytic Gaussian mechanism. The discrete noise
 * differs from rounded Gaussian noise by a total variation distance below sqrt(dimension) / (30 sigma^2),
 * about 1e-15 sqrt(dimension), which is taken off delta first. */
typedef struct tn_dp_local {
    double clip, epsilon, delta;
} tn_dp_local;
TN_API tn_code tn_dp_local_check(const tn_dp_local *p, const tn_layout *l, tn_dp_grid *g, tn_err *err);
TN_API tn_code tn_dp_randomise(const tn_dp_local *p, const tn_layout *l, const tn_dp_random *source,
                               void *delta, tn_err *err);

/* ---- Shares of noise, under a secure sum ---- */

/* The smallest sigma of a share (d->sigma is not read; to 1e-4, rounded up) with which `count` sums of at least
 * d->clients shares stay within epsilon. TN_EINVAL when none up to 1e6 clip does. */
TN_API tn_code tn_dp_distributed_calibrate(const tn_dp_distributed *d, double epsilon, uint64_t count,
                                           double delta, double *sigma, tn_err *err);
/* How many bits (2 to 64) a two's complement number needs for a sum of `most` rounded vectors and their
 * noise: no number is longer than the L2 bound, and noise is within 12 standard deviations. TN_EINVAL when
 * 64 are not enough. */
TN_API tn_code tn_dp_distributed_bits(const tn_dp_distributed *d, uint64_t most, unsigned *bits, tn_err *err);
/* A client's contribution: its update clipped to d->clip, times d->scale, each number rounded up or down at
 * random with its value as the mean, all of it again until the norm is within tn_dp_rounded_bounds, and this
 * share's noise added. d->dimension must be the model's; out has as many integers. Without a vector (block
 * NULL): noise alone. */
TN_API tn_code tn_dp_share(const tn_dp_distributed *d, const tn_layout *l, const void *block,
                           const tn_dp_random *source, int64_t *out, tn_err *err);

#endif

/* Accountants. The expected epsilons come from Google's dp-accounting 0.6.0 and Opacus 1.6.0, or from closed
 * forms computed here in another way, never from the code under test. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "privacy/privacy.h"
#include "privacy/dp_internal.h"

#define LEN(a) (sizeof(a) / sizeof((a)[0]))

static const struct expected {
    double q, sigma;
    uint64_t steps;
    double delta, integers, order, google, opacus, pld;
} table[] = {
    {.01, 1.0, 1000, 1e-5, 2.107753075, 8, 2.101366525, 2.101365, 1.828244},
    {.01, 1.1, 10000, 1e-5, 5.654308000, 5, 5.632010670, 5.631992, 5.192620},
    {256.0 / 60000, 1.1, 14062, 1e-5, 2.596981179, 8, 2.596555870, 2.596556, 2.381686},
    {.02, .8, 500, 1e-5, 5.397018914, 4, 5.371863220, 5.370138, 4.668013},
    {.1, 1.0, 100, 1e-5, 7.972921510, 3, 7.903850224, 7.899255, 7.046603},
    {.1, 4.0, 1000, 1e-6, 4.149801652, 7, 4.148711603, 4.148711, 3.868838},
    {.001, .7, 2000, 1e-6, 2.276954070, 6, 2.142158815, 2.142159, 1.131720},
    {.5, 2.0, 50, 1e-5, 10.302851148, 3, 10.287808094, 10.277893, 9.473594},
    {1, 1.0, 1, 1e-5, 4.752728337, 5, 4.728507067, 4.728507, 4.377178},
    {1, 5.0, 100, 1e-5, 10.801691480, 3, 10.725509696, 10.725510, 9.997256},
    {1, 10.0, 1000, 1e-6, 20.952984027, 3, 20.551991630, 20.551992, 19.423657},
    {.05, 1.5, 300, 1e-5, 3.198546350, 7, 3.183765751, 3.183761, 2.890144},
    {.0001, .6, 5000, 1e-8, 3.147149112, 6, 2.861527998, 2.861528, 1.235740},
    {.2, 10.0, 2000, 1e-7, 5.044238266, 7, 5.043346083, 5.043318, 4.752388},
};

static tn_dp_step gaussian(double q, double sigma, uint64_t count) {
    tn_dp_step s = {.noise = TN_DP_GAUSSIAN, .q = q, .sigma = sigma, .count = count};

    return s;
}

static double epsilon(tn_dp_accountant how, const tn_dp_step *s, size_t n, double delta) {
    tn_dp_spent spent;
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(tn_dp_epsilon(how, s, n, delta, NULL, 0, &spent, &err) == TN_OK, "%s", err.msg);
    return spent.epsilon;
}

START_TEST(rdp_integer_orders) {
    const struct expected *e = &table[_i];
    tn_dp_step s = gaussian(e->q, e->sigma, e->steps);
    double orders[255];
    tn_dp_spent spent;

    for (size_t i = 0; i < LEN(orders); i++)
        orders[i] = (double)i + 2;
    ck_assert_int_eq(tn_dp_epsilon(TN_DP_RDP, &s, 1, e->delta, orders, LEN(orders), &spent, NULL), TN_OK);
    ck_assert_double_eq_tol(spent.epsilon, e->integers, 1e-8);
    ck_assert_double_eq(spent.order, e->order);
    s.noise = TN_DP_DISCRETE_GAUSSIAN; /* no more at integer orders */
    ck_assert_int_eq(tn_dp_epsilon(TN_DP_RDP, &s, 1, e->delta, orders, LEN(orders), &spent, NULL), TN_OK);
    ck_assert_double_eq_tol(spent.epsilon, e->integers, 1e-8);
}
END_TEST

/* dp-accounting leaves out orders at which its series does not converge, so it may say more than we do. */
START_TEST(rdp_default_orders) {
    const struct expected *e = &table[_i];
    tn_dp_step s = gaussian(e->q, e->sigma, e->steps);
    double got = epsilon(TN_DP_RDP, &s, 1, e->delta);

    ck_assert_double_eq_tol(got, e->opacus, 1e-6);
    ck_assert_double_le(got, e->google + 1e-8);
    ck_assert_double_ge(got, e->google - 1e-2);
}
END_TEST

START_TEST(pld) {
    const struct expected *e = &table[_i];
    tn_dp_step s = gaussian(e->q, e->sigma, e->steps);
    double got = epsilon(TN_DP_PLD, &s, 1, e->delta);

    ck_assert_double_le(got, e->pld + 2e-4);
    ck_assert_double_ge(got, e->pld - 2e-4);
}
END_TEST

START_TEST(rdp_of_one_step) {
    static const double order[] = {2, 3, 4, 8, 16, 32, 64};
    static const struct {
        double q, sigma, rdp[7];
    } v[] = {
        {.01,
         1,
         {1.71813422075e-4, 2.64637574585e-4, 3.63154048911e-4, 8.93643907606e-4, 3.0878507837, 11.246275937,
          27.3217318746}},
        {.1,
         2,
         {.00283622826626, .00437365834858, .00600328296449, .0137254301032, .0452918390836, 1.62720230102,
          5.66086725842}},
        {.5,
         2,
         {.0685987243817, .110023193358, .157368203194, .42374833315, 1.28677333946, 3.28493862054,
          7.29585063003}},
    };
    double rdp;

    for (size_t i = 0; i < LEN(v); i++) {
        for (size_t k = 0; k < LEN(order); k++) {
            tn_dp_step s = gaussian(v[i].q, v[i].sigma, 1);

            ck_assert_int_eq(tn_dp_rdp(&s, order[k], &rdp, NULL), TN_OK);
            ck_assert_double_eq_tol(rdp / v[i].rdp[k], 1, 1e-11);
        }
    }
}
END_TEST

/* The sum and the integral are two ways to one function. */
START_TEST(rdp_orders_meet) {
    static const double q[] = {1e-8, 1e-4, .01, .3, .9, .999}, sigma[] = {.05, .2, .7, 3, 50},
                        order[] = {2, 5, 33, 257};

    for (size_t i = 0; i < LEN(q) * LEN(sigma) * LEN(order); i++) {
        tn_dp_step s = gaussian(q[i % LEN(q)], sigma[i / LEN(q) % LEN(sigma)], 1);
        double a = order[i / LEN(q) / LEN(sigma)], at, below, above;

        ck_assert_int_eq(tn_dp_rdp(&s, a, &at, NULL), TN_OK);
        ck_assert_int_eq(tn_dp_rdp(&s, a * (1 - 1e-12), &below, NULL), TN_OK);
        ck_assert_int_eq(tn_dp_rdp(&s, a * (1 + 1e-12), &above, NULL), TN_OK);
        ck_assert_msg(fabs(below - at) <= 1e-8 * at + 1e-17 && fabs(above - at) <= 1e-8 * at + 1e-17,
                      "q %g sigma %g order %g: %.12g %.12g %.12g", s.q, s.sigma, a, below, at, above);
    }
}
END_TEST

START_TEST(rdp_fractional_between) {
    tn_dp_step s = gaussian(.02, .8, 3), d = {TN_DP_DISCRETE_GAUSSIAN, .02, .8, 3, 1};
    double last = 0, rdp, next;

    for (double a = 1.01; a < 20; a += .17) { /* grows with the order */
        ck_assert_int_eq(tn_dp_rdp(&s, a, &rdp, NULL), TN_OK);
        ck_assert_double_gt(rdp, last);
        last = rdp;
        ck_assert_int_eq(tn_dp_rdp(&s, ceil(a), &next, NULL), TN_OK);
        ck_assert_int_eq(tn_dp_rdp(&d, a, &rdp, NULL), TN_OK);
        ck_assert_double_eq(rdp, next); /* of the discrete Gaussian: the next integer's */
    }
    d.q = 1;
    ck_assert_int_eq(tn_dp_rdp(&d, 1.5, &rdp, NULL), TN_OK);
    ck_assert_double_eq_tol(rdp, 3 * 1.5 / (2 * .64), 1e-12);
}
END_TEST

START_TEST(steps_add_up) {
    tn_dp_step one = gaussian(.01, 1, 1000),
               parts[3] = {gaussian(.01, 1, 400), gaussian(.01, 1, 0), gaussian(.01, 1, 600)};
    tn_dp_step mixed[2] = {gaussian(1, 20, 50), gaussian(1, 40, 200)}, same = gaussian(1, 2, 1);

    ck_assert_double_eq_tol(epsilon(TN_DP_RDP, parts, 3, 1e-5), epsilon(TN_DP_RDP, &one, 1, 1e-5), 1e-12);
    ck_assert_double_eq_tol(epsilon(TN_DP_PLD, parts, 3, 1e-5), epsilon(TN_DP_PLD, &one, 1, 1e-5), 1e-9);
    /* Gaussians compose into one: 50/20^2 + 200/40^2 = 1/2^2 */
    ck_assert_double_eq_tol(epsilon(TN_DP_RDP, mixed, 2, 1e-5), epsilon(TN_DP_RDP, &same, 1, 1e-5), 1e-9);
    ck_assert_double_eq_tol(epsilon(TN_DP_PLD, mixed, 2, 1e-5), epsilon(TN_DP_PLD, &same, 1, 1e-5), 1e-4);
    ck_assert_double_eq(epsilon(TN_DP_PLD, parts + 1, 1, 1e-5), 0);
    ck_assert_double_eq(epsilon(TN_DP_RDP, parts + 1, 1, 1e-5), 0);
    ck_assert_double_eq(epsilon(TN_DP_RDP, NULL, 0, 1e-5), 0);
}
END_TEST

START_TEST(gaussian_mechanism) {
    static const struct {
        double epsilon, delta, sigma;
    } v[] = {
        {1, 1e-5, 3.730631635}, {.5, 1e-6, 8.057618481}, {8, 1e-5, .600229072},   {.1, 1e-9, 50.209818263},
        {4.377178096, 1e-5, 1}, {2.254084650, 1e-6, 2},  {9.997256146, 1e-5, .5},
    };
    double got;

    for (size_t i = 0; i < LEN(v); i++) {
        ck_assert_int_eq(tn_dp_gaussian_sigma(v[i].epsilon, v[i].delta, &got, NULL), TN_OK);
        ck_assert_double_eq_tol(got, v[i].sigma, 2e-9 * fmax(1, v[i].sigma));
        ck_assert_int_eq(tn_dp_gaussian_epsilon(v[i].sigma, v[i].delta, &got, NULL), TN_OK);
        ck_assert_double_eq_tol(got, v[i].epsilon, 5e-9);
    }
    ck_assert_int_eq(tn_dp_gaussian_epsilon(1000, .5, &got, NULL), TN_OK);
    ck_assert_double_eq(got, 0);
}
END_TEST

/* Without sampling there is a closed form, for any number of steps and down to the smallest delta. */
START_TEST(pld_is_the_gaussian_mechanism) {
    static const double delta[] = {.3, 1e-3, 1e-9, 1e-15, 1e-40};
    static const uint64_t steps[] = {1, 7, 1000};
    double want;

    for (size_t i = 0; i < LEN(delta); i++) {
        for (size_t k = 0; k < LEN(steps); k++) {
            tn_dp_step s = gaussian(1, 1.5 * sqrt((double)steps[k]), steps[k]);
            double got = epsilon(TN_DP_PLD, &s, 1, delta[i]);

            ck_assert_int_eq(tn_dp_gaussian_epsilon(1.5, delta[i], &want, NULL), TN_OK);
            ck_assert_msg(got >= want - 1e-8 && got <= want + 5e-4, "delta %g, %llu steps: %.9g for %.9g",
                          delta[i], (unsigned long long)steps[k], got, want);
        }
    }
}
END_TEST

static double tail(double x) { return erfc(x / sqrt(2)) / 2; }

/* One sampled step, by its definition: the hockey stick is cut where the loss is epsilon. */
static double removal_delta(double q, double sigma, double e) {
    double x = sigma * sigma * log((expm1(e) + q) / q) + .5;

    return (1 - q) * tail(x / sigma) + q * tail((x - 1) / sigma) - exp(e) * tail(x / sigma);
}

static double addition_delta(double q, double sigma, double e) {
    double cut = (expm1(-e) + q) / q, x;

    if (cut <= 0)
        return 0;
    x = sigma * sigma * log(cut) + .5;
    return tail(-x / sigma) - exp(e) * ((1 - q) * tail(-x / sigma) + q * tail((1 - x) / sigma));
}

START_TEST(pld_of_one_sampled_step) {
    static const double q[] = {.001, .05, .4, .95}, sigma[] = {.3, 1, 4}, delta[] = {1e-2, 1e-5, 1e-10};

    for (size_t i = 0; i < LEN(q) * LEN(sigma) * LEN(delta); i++) {
        double a = q[i % LEN(q)], b = sigma[i / LEN(q) % LEN(sigma)], d = delta[i / LEN(q) / LEN(sigma)];
        tn_dp_step s = gaussian(a, b, 1);
        double e = epsilon(TN_DP_PLD, &s, 1, d), at = fmax(removal_delta(a, b, e), addition_delta(a, b, e)),
               less;

        ck_assert_double_le(at, d * (1 + 1e-6)); /* it holds, and it is hardly more than what is needed */
        if (e == 0)
            continue;
        less = fmax(e - 1e-4, 0);
        ck_assert_double_ge(fmax(removal_delta(a, b, less), addition_delta(a, b, less)), d * (1 - 1e-9));
    }
}
END_TEST

START_TEST(pld_of_discrete_gaussians) {
    static const struct {
        double sigma;
        uint32_t sensitivity;
        double delta, once, ten;
    } v[] = {
        {1, 1, 1e-5, 4.430238, 17.865552}, {5, 1, 1e-5, .726643, 2.594187}, {10, 3, 1e-6, 1.292279, 4.602895}};

    for (size_t i = 0; i < LEN(v); i++) {
        tn_dp_step s = {TN_DP_DISCRETE_GAUSSIAN, 1, v[i].sigma / v[i].sensitivity, 1, v[i].sensitivity};

        ck_assert_double_eq_tol(epsilon(TN_DP_PLD, &s, 1, v[i].delta), v[i].once, 5e-5);
        s.count = 10;
        ck_assert_double_eq_tol(epsilon(TN_DP_PLD, &s, 1, v[i].delta), v[i].ten, 5e-5);
    }
}
END_TEST

/* On a fine grid it is the Gaussian, sampled or not; and it never beats the bound that holds for it. */
START_TEST(pld_of_a_fine_grid) {
    tn_dp_step d = {TN_DP_DISCRETE_GAUSSIAN, .1, 2, 20, 1000}, s = gaussian(.1, 2, 20);

    ck_assert_double_eq_tol(epsilon(TN_DP_PLD, &d, 1, 1e-6), epsilon(TN_DP_PLD, &s, 1, 1e-6), 1e-3);
    d.count = 250000; /* roundings of so many steps must not pass for infinite losses */
    d.q = s.q = .03;
    d.sigma = s.sigma = 8;
    s.count = d.count;
    ck_assert_double_eq_tol(epsilon(TN_DP_PLD, &d, 1, 1e-13), epsilon(TN_DP_PLD, &s, 1, 1e-13), 5e-3);
    d = (tn_dp_step){TN_DP_DISCRETE_GAUSSIAN, .1, 2, 20, 1};
    ck_assert_double_le(epsilon(TN_DP_PLD, &d, 1, 1e-6), epsilon(TN_DP_RDP, &d, 1, 1e-6));
}
END_TEST

START_TEST(limits_of_sampling) {
    tn_dp_step s = gaussian(1e-12, 1, 1), big = gaussian(.01, 1000, 10000000);

    ck_assert_double_eq(epsilon(TN_DP_RDP, &s, 1, 1e-5), 0);
    ck_assert_double_eq(epsilon(TN_DP_PLD, &s, 1, 1e-5), 0);
    ck_assert_double_le(epsilon(TN_DP_PLD, &big, 1, 1e-5), epsilon(TN_DP_RDP, &big, 1, 1e-5));
    s = gaussian(.999999, .1, 1000); /* hopeless, and said so */
    ck_assert_double_gt(epsilon(TN_DP_PLD, &s, 1, 1e-5), 1000);
    s.sigma = .01;
    ck_assert_double_gt(epsilon(TN_DP_RDP, &s, 1, 1e-5), 1000);
}
END_TEST

START_TEST(shared_noise) {
    static const struct {
        double scale, sigma;
        uint64_t clients;
        double clip, beta;
        uint64_t dimension, steps;
        double delta, l2, l1, gaussian, skellam;
    } v[] = {
        {1024, .1, 100, 1, .60653065971263342, 1024, 1, 1e-5, 1.000618, 32.019769, 4.755818, 4.755820},
        {256, .05, 500, .5, .60653065971263342, 4096, 100, 1e-5, .517751, 33.136083, 31.571944, 31.572330},
        {64, .2, 50, 1, 0, 256, 10, 1e-6, 1.25, 20, 17.671734, 17.673212},
        {16, .1, 100, 1, .60653065971263342, 1024, 1, 1e-5, 1.457738, 34, 7.337862, 7.364839},
    };
    tn_dp_bounds b;
    tn_dp_spent spent;

    for (size_t i = 0; i < LEN(v); i++) {
        tn_dp_distributed d = {TN_DP_SKELLAM, v[i].scale, v[i].sigma,    v[i].clients,
                               v[i].clip,     v[i].beta,  v[i].dimension};

        ck_assert_int_eq(tn_dp_rounded_bounds(&d, &b, NULL), TN_OK);
        ck_assert_double_eq_tol(b.l2 / d.scale, v[i].l2, 1e-6);
        ck_assert_double_eq_tol(b.l1 / d.scale, v[i].l1, 1e-6);
        ck_assert_int_eq(tn_dp_distributed_epsilon(&d, v[i].steps, v[i].delta, NULL, 0, &spent, NULL), TN_OK);
        ck_assert_double_eq_tol(spent.epsilon, v[i].skellam, 1e-6);
        d.noise = TN_DP_SHARED_DISCRETE_GAUSSIAN;
        ck_assert_int_eq(tn_dp_distributed_epsilon(&d, v[i].steps, v[i].delta, NULL, 0, &spent, NULL), TN_OK);
        ck_assert_double_eq_tol(spent.epsilon, v[i].gaussian, 1e-6);
    }
}
END_TEST

/* A sum of coarse discrete Gaussians is not one: the gap must show. With half the shares, more is spent. */
START_TEST(shared_noise_too_coarse) {
    tn_dp_distributed d = {TN_DP_SHARED_DISCRETE_GAUSSIAN, 1, .5, 100, 1, 0, 10}, k = d;
    tn_dp_spent coarse, skellam, half;

    k.noise = TN_DP_SKELLAM;
    ck_assert_int_eq(tn_dp_distributed_epsilon(&d, 1, 1e-5, NULL, 0, &coarse, NULL), TN_OK);
    ck_assert_int_eq(tn_dp_distributed_epsilon(&k, 1, 1e-5, NULL, 0, &skellam, NULL), TN_OK);
    ck_assert_double_gt(coarse.epsilon, 2 * skellam.epsilon);
    d = (tn_dp_distributed){TN_DP_SKELLAM, 1024, .1, 100, 1, 0, 1000};
    ck_assert_int_eq(tn_dp_distributed_epsilon(&d, 5, 1e-5, NULL, 0, &skellam, NULL), TN_OK);
    d.clients = 50;
    ck_assert_int_eq(tn_dp_distributed_epsilon(&d, 5, 1e-5, NULL, 0, &half, NULL), TN_OK);
    ck_assert_double_gt(half.epsilon, 1.3 * skellam.epsilon);
}
END_TEST

START_TEST(calibrates) {
    static const struct {
        tn_dp_accountant how;
        double epsilon, q;
        uint64_t steps;
        double close;
    } v[] = {
        {TN_DP_RDP, 2, .01, 1000, 1e-6}, {TN_DP_RDP, .3, .001, 50, 1e-6}, {TN_DP_RDP, 50, .5, 3, 1e-6},
        {TN_DP_RDP, 8, 1, 20, 1e-6},     {TN_DP_PLD, 2, .1, 50, 1e-4},    {TN_DP_PLD, 1, 1, 1, 1e-4},
    };
    double sigma, want;

    for (size_t i = 0; i < LEN(v); i++) {
        tn_dp_step s = gaussian(v[i].q, 1, v[i].steps);

        ck_assert_int_eq(
            tn_dp_calibrate(v[i].how, v[i].epsilon, v[i].q, v[i].steps, 1e-5, NULL, 0, &s.sigma, NULL), TN_OK);
        ck_assert_double_le(epsilon(v[i].how, &s, 1, 1e-5), v[i].epsilon);
        s.sigma *= 1 - 2 * v[i].close;
        ck_assert_double_gt(epsilon(v[i].how, &s, 1, 1e-5), v[i].epsilon);
    }
    ck_assert_int_eq(tn_dp_calibrate(TN_DP_PLD, 1, 1, 1, 1e-5, NULL, 0, &sigma, NULL), TN_OK);
    ck_assert_int_eq(tn_dp_gaussian_sigma(1, 1e-5, &want, NULL), TN_OK);
    ck_assert_double_eq_tol(sigma, want, 1e-3);
    /* a budget for which the least noise will do */
    ck_assert_int_eq(tn_dp_calibrate(TN_DP_RDP, 1e6, 1, 1, 1e-5, NULL, 0, &sigma, NULL), TN_OK);
    ck_assert_double_eq(sigma, .01);
}
END_TEST

static void refused(tn_dp_accountant how, tn_dp_step s, double delta, const double *orders, size_t norders,
                    const char *name) {
    tn_dp_spent spent;
    tn_err err = TN_ERR_INIT;

    ck_assert_int_eq(tn_dp_epsilon(how, &s, 1, delta, orders, norders, &spent, &err), TN_EINVAL);
    ck_assert_msg(strstr(err.msg, name) != NULL, "\"%s\" does not name %s", err.msg, name);
}

START_TEST(refuses_by_name) {
    static const double bad[] = {(double)NAN, -1, 0, HUGE_VAL, -HUGE_VAL}, low[] = {2, 1},
                        none[] = {2, (double)NAN};
    tn_dp_distributed d = {TN_DP_SKELLAM, 1024, .1, 100, 1, 0, 1000};
    tn_dp_step s = gaussian(.1, 1, 10);
    tn_dp_spent spent;
    tn_err err = TN_ERR_INIT;
    double x;

    for (int how = TN_DP_RDP; how <= TN_DP_PLD; how++) {
        for (size_t i = 0; i < LEN(bad); i++) {
            refused((tn_dp_accountant)how, gaussian(bad[i], 1, 1), 1e-5, NULL, 0, "q is");
            refused((tn_dp_accountant)how, gaussian(.1, bad[i], 1), 1e-5, NULL, 0, "sigma is");
            refused((tn_dp_accountant)how, s, bad[i], NULL, 0, "delta is");
        }
        refused((tn_dp_accountant)how, gaussian(1.5, 1, 1), 1e-5, NULL, 0, "q is 1.5");
        refused((tn_dp_accountant)how, s, 1, NULL, 0, "delta is 1");
        refused((tn_dp_accountant)how, gaussian(.1, 1, 1000000001), 1e-5, NULL, 0, "steps");
    }
    refused(TN_DP_PLD, gaussian(.1, .05, 1), 1e-5, NULL, 0, "sigma is 0.05");
    refused(TN_DP_PLD, s, 1e-5, low, 1, "orders");
    refused(TN_DP_PLD, (tn_dp_step){TN_DP_DISCRETE_GAUSSIAN, 1, 1, 1, 0}, 1e-5, NULL, 0, "sensitivity");
    refused(TN_DP_RDP, s, 1e-5, low, 2, "orders[1] is 1");
    refused(TN_DP_RDP, s, 1e-5, none, 2, "orders[1]");
    refused(TN_DP_RDP, s, 1e-5, low, 0, "0 orders");

    ck_assert_int_eq(tn_dp_calibrate(TN_DP_RDP, 0, .1, 1, 1e-5, NULL, 0, &x, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "epsilon is 0"));
    ck_assert_int_eq(tn_dp_calibrate(TN_DP_RDP, 1, .1, 0, 1e-5, NULL, 0, &x, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "steps is 0"));
    /* order 2 alone says nothing below log(1 / 4 delta) */
    ck_assert_int_eq(tn_dp_calibrate(TN_DP_RDP, 1, 1, 10, 1e-9, low, 1, &x, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "no sigma"));
    ck_assert_int_eq(tn_dp_gaussian_sigma((double)NAN, 1e-5, &x, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "epsilon"));
    ck_assert_int_eq(tn_dp_gaussian_epsilon(0, 1e-5, &x, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "sigma"));
    ck_assert_int_eq(tn_dp_rdp(&s, .5, &x, &err), TN_EINVAL);
    ck_assert_int_eq(tn_dp_distributed_epsilon(&d, 1, 1e-5, (const double[]){2.5}, 1, &spent, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "Skellam"));
    d.beta = 1;
    ck_assert_int_eq(tn_dp_distributed_epsilon(&d, 1, 1e-5, NULL, 0, &spent, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "beta"));
    d.beta = 0;
    d.clients = 0;
    ck_assert_int_eq(tn_dp_rounded_bounds(&d, &(tn_dp_bounds){0, 0}, &err), TN_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.msg, "clients"));
}
END_TEST

START_TEST(default_orders) {
    size_t n;
    const double *orders = tn_dp_orders(&n);

    ck_assert_uint_eq(n, 156);
    ck_assert_double_eq_tol(orders[0], 1.1, 1e-15);
    ck_assert_double_eq_tol(orders[98], 10.9, 1e-14);
    ck_assert_double_eq(orders[99], 11);
    ck_assert_double_eq(orders[151], 63);
    ck_assert_double_eq(orders[155], 1024);
    for (size_t i = 1; i < n; i++)
        ck_assert_double_gt(orders[i], orders[i - 1]);
}
END_TEST

/* Against the sum of the definition. */
START_TEST(fourier_transform) {
    enum { N = 16 };
    double x[2 * N], kept[2 * N];
    tni_fft f;

    ck_assert_int_eq(tni_fft_init(&f, N, NULL), TN_OK);
    for (int i = 0; i < 2 * N; i++)
        kept[i] = x[i] = sin(i * i + 1.0);
    tni_fft_forward(&f, x);
    for (int k = 0; k < N; k++) {
        int at = (k & 1) << 3 | (k & 2) << 1 | (k & 4) >> 1 | (k & 8) >> 3;
        double re = 0, im = 0;

        for (int i = 0; i < N; i++) {
            double a = -2 * M_PI * k * i / N;

            re += kept[2 * i] * cos(a) - kept[2 * i + 1] * sin(a);
            im += kept[2 * i] * sin(a) + kept[2 * i + 1] * cos(a);
        }
        ck_assert_double_eq_tol(x[2 * at], re, 1e-13);
        ck_assert_double_eq_tol(x[2 * at + 1], im, 1e-13);
    }
    tni_fft_inverse(&f, x);
    for (int i = 0; i < 2 * N; i++)
        ck_assert_double_eq_tol(x[i], kept[i], 1e-15);
    tni_fft_release(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("dp_accountant");
    TCase *t = tcase_create("accountant");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, rdp_integer_orders, 0, LEN(table));
    tcase_add_loop_test(t, rdp_default_orders, 0, LEN(table));
    tcase_add_loop_test(t, pld, 0, LEN(table));
    tcase_add_test(t, rdp_of_one_step);
    tcase_add_test(t, rdp_orders_meet);
    tcase_add_test(t, rdp_fractional_between);
    tcase_add_test(t, steps_add_up);
    tcase_add_test(t, gaussian_mechanism);
    tcase_add_test(t, pld_is_the_gaussian_mechanism);
    tcase_add_test(t, pld_of_one_sampled_step);
    tcase_add_test(t, pld_of_discrete_gaussians);
    tcase_add_test(t, pld_of_a_fine_grid);
    tcase_add_test(t, limits_of_sampling);
    tcase_add_test(t, shared_noise);
    tcase_add_test(t, shared_noise_too_coarse);
    tcase_add_test(t, calibrates);
    tcase_add_test(t, refuses_by_name);
    tcase_add_test(t, default_orders);
    tcase_add_test(t, fourier_transform);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

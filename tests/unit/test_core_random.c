/* Randomness: the seeded generator against published values, its ranges, and that the system's source answers. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

/* Computed apart from this code, by the formula of the paper in arbitrary-precision integers. */
START_TEST(splitmix64_gives_its_sequence) {
    static const uint64_t want[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                    UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                    UINT64_C(16408922859458223821)};
    tn_rng a = tn_rng_seed(1234567), zero = tn_rng_seed(0);

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        ck_assert_uint_eq(tn_rng_u64(&a), want[i]);
    ck_assert_uint_eq(tn_rng_u64(&zero), UINT64_C(0xE220A8397B1DCDAF));
}
END_TEST

START_TEST(below_stays_below_and_is_even) {
    static const uint64_t ns[] = {1, 2, 3, 6, 1000, UINT64_C(1) << 63, (UINT64_C(1) << 63) + 1, UINT64_MAX};
    unsigned count[6] = {0}, high = 0;
    tn_rng r = tn_rng_seed(42);

    for (size_t i = 0; i < sizeof(ns) / sizeof(ns[0]); i++) {
        for (int k = 0; k < 1000; k++)
            ck_assert_uint_lt(tn_rng_below(&r, ns[i]), ns[i]);
    }
    for (int k = 0; k < 60000; k++)
        count[tn_rng_below(&r, 6)]++;
    for (int i = 0; i < 6; i++) /* within 6 standard deviations of 10000; the seed is fixed */
        ck_assert_msg(count[i] > 9450 && count[i] < 10550, "%d: %u", i, count[i]);
    /* 3/4 of the range: a plain remainder would give a third of it twice as often, 2/3 in the lower third. */
    for (int k = 0; k < 60000; k++)
        high += tn_rng_below(&r, UINT64_C(3) << 62) >= UINT64_C(1) << 62;
    ck_assert_msg(high > 39300 && high < 40700, "%u", high);
}
END_TEST

START_TEST(unit_covers_its_interval) {
    tn_rng r = tn_rng_seed(9);
    double sum = 0, low = 1, high = 0;

    for (int i = 0; i < 100000; i++) {
        double u = tn_rng_unit(&r);

        ck_assert(u >= 0 && u < 1);
        low = u < low ? u : low;
        high = u > high ? u : high;
        sum += u;
    }
    ck_assert(low < 0.001 && high > 0.999);
    ck_assert(sum > 49500 && sum < 50500);
}
END_TEST

START_TEST(a_copy_goes_its_own_way) {
    tn_rng a = tn_rng_seed(5), b;

    tn_rng_u64(&a);
    b = a;
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(tn_rng_u64(&a), tn_rng_u64(&b));
}
END_TEST

START_TEST(the_system_has_randomness) {
    uint8_t a[32] = {0}, b[32] = {0};

    ck_assert_int_eq(tn_random_init(NULL), TN_OK);
    ck_assert_int_eq(tn_random_init(NULL), TN_OK);
    tn_random_bytes(a, sizeof(a));
    tn_random_bytes(b, sizeof(b));
    ck_assert_int_ne(memcmp(a, b, sizeof(a)), 0);
    tn_random_bytes(NULL, 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/random");
    TCase *tc = tcase_create("random");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, splitmix64_gives_its_sequence);
    tcase_add_test(tc, below_stays_below_and_is_even);
    tcase_add_test(tc, unit_covers_its_interval);
    tcase_add_test(tc, a_copy_goes_its_own_way);
    tcase_add_test(tc, the_system_has_randomness);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Clock: arithmetic on deadlines at its edges, the shape of a time stamp, waits on condition variables. */
#include <check.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

START_TEST(now_never_goes_back) {
    int64_t last = tn_now();

    for (int i = 0; i < 10000; i++) {
        int64_t now = tn_clock_monotonic.now(tn_clock_monotonic.arg);

        ck_assert_int_ge(now, last);
        last = now;
    }
}
END_TEST

START_TEST(deadlines_saturate) {
    static const struct {
        int64_t now, ns, want;
    } rows[] = {
        {5, 7, 12},
        {5, 0, 5},
        {5, -7, -2},
        {0, TN_FOREVER, TN_FOREVER},
        {TN_FOREVER, 0, TN_FOREVER},
        {TN_FOREVER, -5, TN_FOREVER},
        {INT64_MAX - 1, 2, TN_FOREVER},
        {INT64_MAX - 2, 1, INT64_MAX - 1},
        {INT64_MIN, -1, INT64_MIN},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        ck_assert_int_eq(tn_deadline_after(rows[i].now, rows[i].ns), rows[i].want);
}
END_TEST

START_TEST(seconds_saturate) {
    ck_assert_int_eq(tn_seconds_to_ns(1.5), 1500000000);
    ck_assert_int_eq(tn_seconds_to_ns(0), 0);
    ck_assert_int_eq(tn_seconds_to_ns(-1), 0);
    ck_assert_int_eq(tn_seconds_to_ns((double)NAN), 0);
    ck_assert_int_eq(tn_seconds_to_ns((double)INFINITY), TN_FOREVER);
    ck_assert_int_eq(tn_seconds_to_ns(-(double)INFINITY), 0);
    ck_assert_int_eq(tn_seconds_to_ns(1e300), TN_FOREVER);
    ck_assert_int_eq(tn_seconds_to_ns(9223372036.854775807), TN_FOREVER);
    ck_assert_int_lt(tn_seconds_to_ns(9223372036.0), TN_FOREVER);
}
END_TEST

START_TEST(utc_has_its_shape) {
    char text[32];
    regex_t shape;

    ck_assert_int_eq(regcomp(&shape, "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9](:[0-6][0-9]){2}\\.[0-9]{3}Z$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    ck_assert_ptr_eq(tn_utc_now(text, sizeof(text)), text);
    ck_assert_msg(regexec(&shape, text, 0, NULL, 0) == 0, "%s", text);
    regfree(&shape);
}
END_TEST

START_TEST(a_past_deadline_does_not_wait) {
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t c;

    tn_cond_init(&c);
    pthread_mutex_lock(&m);
    ck_assert_int_eq(tn_cond_wait_until(&c, &m, INT64_MIN), TN_ETIMEDOUT);
    ck_assert_int_eq(tn_cond_wait_until(&c, &m, 0), TN_ETIMEDOUT);
    ck_assert_int_eq(tn_cond_wait_until(&c, &m, tn_now() - 1), TN_ETIMEDOUT);
    pthread_mutex_unlock(&m);
    pthread_cond_destroy(&c);
}
END_TEST

START_TEST(a_wait_ends_after_its_deadline) {
    pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t c;
    int64_t deadline = tn_deadline_after(tn_now(), 20 * TN_MS);

    tn_cond_init(&c);
    pthread_mutex_lock(&m);
    while (tn_cond_wait_until(&c, &m, deadline) == TN_OK)
        ; /* spurious */
    ck_assert_int_ge(tn_now(), deadline);
    pthread_mutex_unlock(&m);
    pthread_cond_destroy(&c);
}
END_TEST

typedef struct gate {
    pthread_mutex_t m;
    pthread_cond_t c;
    int turn;
} gate;

static void *answer(void *arg) {
    gate *g = arg;

    pthread_mutex_lock(&g->m);
    while (g->turn != 1)
        tn_cond_wait_until(&g->c, &g->m, TN_FOREVER);
    g->turn = 2;
    pthread_cond_signal(&g->c);
    pthread_mutex_unlock(&g->m);
    return NULL;
}

START_TEST(a_signal_wakes) {
    gate g = {.m = PTHREAD_MUTEX_INITIALIZER};
    int64_t deadline = tn_deadline_after(tn_now(), 60 * TN_SECOND);
    pthread_t t;

    tn_cond_init(&g.c);
    ck_assert_int_eq(pthread_create(&t, NULL, answer, &g), 0);
    pthread_mutex_lock(&g.m);
    g.turn = 1;
    pthread_cond_signal(&g.c);
    while (g.turn != 2)
        ck_assert_int_eq(tn_cond_wait_until(&g.c, &g.m, deadline), TN_OK);
    pthread_mutex_unlock(&g.m);
    pthread_join(t, NULL);
    pthread_cond_destroy(&g.c);
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/clock");
    TCase *tc = tcase_create("clock");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(tc, 60);
    suite_add_tcase(s, tc);
    tcase_add_test(tc, now_never_goes_back);
    tcase_add_test(tc, deadlines_saturate);
    tcase_add_test(tc, seconds_saturate);
    tcase_add_test(tc, utc_has_its_shape);
    tcase_add_test(tc, a_past_deadline_does_not_wait);
    tcase_add_test(tc, a_wait_ends_after_its_deadline);
    tcase_add_test(tc, a_signal_wakes);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

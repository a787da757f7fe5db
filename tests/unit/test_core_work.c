/* Work: each transition, exactly once, from one thread and from several at once. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/work.h"

#define LONG (60 * TN_SECOND)
#define ROUNDS 300
#define THREADS 4

/* ---- One thread ---- */

typedef struct calls {
    int n;
    tn_code why;
    tn_work *finish; /* the work to finish from inside, or NULL */
} calls;

static void count_cancel(void *arg, tn_code why) {
    calls *c = arg;
    tn_err e;

    c->n++;
    c->why = why;
    if (c->finish != NULL) {
        tn_fail(&e, why, "stopped");
        ck_assert(tn_work_finish(c->finish, &e));
    }
}

static void count_done(void *arg, tn_work *w) {
    calls *c = arg;

    ck_assert(tn_work_done(w)); /* no lock is held: the work answers */
    c->n++;
}

START_TEST(success) {
    tn_work *w = tn_work_new();
    tn_err e = TN_ERR_INIT;

    ck_assert(!tn_work_done(w));
    ck_assert(tn_work_start(w, NULL, NULL));
    ck_assert(!tn_work_done(w));
    ck_assert(tn_work_finish(w, NULL));
    ck_assert(tn_work_done(w));
    ck_assert_int_eq(tn_work_wait(w, 0, &e), TN_OK);
    ck_assert_int_eq(tn_work_wait(w, TN_FOREVER, NULL), TN_OK);
    ck_assert_int_eq(e.code, TN_OK);
    tn_work_unref(w);
    tn_work_unref(NULL);
}
END_TEST

START_TEST(only_the_first_finish_counts) {
    tn_work *w = tn_work_new();
    tn_err first, second, got = TN_ERR_INIT;

    tn_fail(&first, TN_EPEER, "rank 3 is gone");
    tn_fail(&second, TN_EIO, "too late");
    ck_assert(tn_work_start(w, NULL, NULL));
    ck_assert(tn_work_finish(w, &first));
    ck_assert(!tn_work_finish(w, &second));
    ck_assert(!tn_work_finish(w, NULL));
    ck_assert_int_eq(tn_work_wait(w, LONG, &got), TN_EPEER);
    ck_assert_int_eq(got.code, TN_EPEER);
    ck_assert_str_eq(got.msg, "rank 3 is gone");
    ck_assert_int_eq(tn_work_wait(w, LONG, NULL), TN_EPEER);
    tn_work_unref(w);
}
END_TEST

START_TEST(a_timed_out_wait_leaves_it_running) {
    tn_work *w = tn_work_new();
    tn_err e = TN_ERR_INIT;
    int64_t begin = tn_now();

    ck_assert_int_eq(tn_work_wait(w, 0, &e), TN_ETIMEDOUT);
    ck_assert_str_eq(e.msg, "the operation had not begun after 0.000 s");
    ck_assert(tn_work_start(w, NULL, NULL));
    ck_assert_int_eq(tn_work_wait(w, 20 * TN_MS, &e), TN_ETIMEDOUT);
    ck_assert_str_eq(e.msg, "the operation was still running after 0.020 s");
    ck_assert_int_ge(tn_now() - begin, 20 * TN_MS);
    ck_assert_int_eq(tn_work_wait(w, -1, &e), TN_ETIMEDOUT);
    ck_assert(!tn_work_done(w));
    ck_assert(tn_work_finish(w, NULL));
    ck_assert_int_eq(tn_work_wait(w, 0, &e), TN_OK);
    tn_work_unref(w);
}
END_TEST

START_TEST(aborted_before_it_began) {
    tn_work *w = tn_work_new();
    calls cancel = {0}, done = {0};
    tn_err e = TN_ERR_INIT;

    ck_assert(tn_work_on_done(w, count_done, &done));
    tn_work_abort(w, TN_ETIMEDOUT);
    ck_assert(tn_work_done(w));
    ck_assert_int_eq(done.n, 1);
    ck_assert(!tn_work_start(w, count_cancel, &cancel));
    ck_assert(!tn_work_finish(w, NULL));
    tn_work_abort(w, TN_EIO);
    ck_assert_int_eq(tn_work_wait(w, 0, &e), TN_ETIMEDOUT);
    ck_assert_str_eq(e.msg, "aborted before it began: timed out");
    ck_assert_int_eq(cancel.n, 0);
    ck_assert_int_eq(done.n, 1);
    tn_work_unref(w);

    w = tn_work_new();
    tn_work_abort(w, TN_OK); /* an abort never succeeds */
    ck_assert_int_eq(tn_work_wait(w, 0, NULL), TN_ECANCELED);
    tn_work_unref(w);
}
END_TEST

START_TEST(abort_asks_the_provider_once) {
    tn_work *w = tn_work_new();
    calls cancel = {0};

    ck_assert(tn_work_start(w, count_cancel, &cancel));
    tn_work_abort(w, TN_ETIMEDOUT);
    tn_work_abort(w, TN_ECANCELED);
    ck_assert_int_eq(cancel.n, 1);
    ck_assert_int_eq(cancel.why, TN_ETIMEDOUT);
    ck_assert(!tn_work_done(w)); /* it may still succeed */
    ck_assert(tn_work_finish(w, NULL));
    tn_work_abort(w, TN_ECANCELED);
    ck_assert_int_eq(cancel.n, 1);
    ck_assert_int_eq(tn_work_wait(w, 0, NULL), TN_OK);
    tn_work_unref(w);
}
END_TEST

START_TEST(cancel_may_finish_from_inside) {
    tn_work *w = tn_work_new();
    calls cancel = {.finish = w}, done = {0};

    ck_assert(tn_work_start(w, count_cancel, &cancel));
    ck_assert(tn_work_on_done(w, count_done, &done));
    tn_work_abort(w, TN_ECANCELED);
    ck_assert_int_eq(tn_work_wait(w, 0, NULL), TN_ECANCELED);
    ck_assert_int_eq(done.n, 1);
    tn_work_unref(w);
}
END_TEST

START_TEST(abort_of_what_cannot_be_stopped) {
    tn_work *w = tn_work_new();

    ck_assert(tn_work_start(w, NULL, NULL));
    tn_work_abort(w, TN_ECANCELED);
    ck_assert(!tn_work_done(w));
    ck_assert(tn_work_finish(w, NULL));
    tn_work_unref(w);
}
END_TEST

START_TEST(the_callback_runs_once) {
    tn_work *w = tn_work_new();
    calls a = {0}, b = {0};

    ck_assert(tn_work_on_done(w, count_done, &a));
    ck_assert(!tn_work_on_done(w, count_done, &b));
    ck_assert(tn_work_finish(w, NULL)); /* a work that never started may be finished */
    ck_assert(!tn_work_finish(w, NULL));
    ck_assert(!tn_work_on_done(w, count_done, &b));
    ck_assert_int_eq(a.n, 1);
    ck_assert_int_eq(b.n, 0);
    tn_work_unref(w);

    w = tn_work_new();
    ck_assert(tn_work_finish(w, NULL));
    ck_assert(tn_work_on_done(w, count_done, &b)); /* done already: at once */
    ck_assert(!tn_work_on_done(w, count_done, &b));
    ck_assert_int_eq(b.n, 1);
    tn_work_unref(w);
}
END_TEST

static void drop(void *arg, tn_work *w) {
    (void)arg;
    tn_work_unref(w);
}

START_TEST(the_callback_may_drop_a_reference) {
    tn_work *w = tn_work_new();

    tn_work_ref(w);
    ck_assert(tn_work_on_done(w, drop, NULL));
    ck_assert(tn_work_finish(w, NULL));
    ck_assert(tn_work_done(w));
    tn_work_unref(w); /* the last: a leak or a double free shows under ASan */
}
END_TEST

/* ---- Several threads. Everyone meets at the barrier, then all act at once. ---- */

typedef struct race {
    pthread_barrier_t line;
    tn_work *w;
    atomic_int finished, called, cancelled, registered;
} race;

static void race_init(race *r, unsigned threads) {
    memset(r, 0, sizeof(*r));
    ck_assert_int_eq(pthread_barrier_init(&r->line, NULL, threads), 0);
    r->w = tn_work_new();
}

static void race_release(race *r) {
    tn_work_unref(r->w);
    pthread_barrier_destroy(&r->line);
}

static void spawn(pthread_t *t, size_t n, void *(*fn)(void *), void *arg) {
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, fn, arg), 0);
}

static void join(pthread_t *t, size_t n) {
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(pthread_join(t[i], NULL), 0);
}

static void *waiter(void *arg) {
    race *r = arg;
    tn_work *w = tn_work_ref(r->w);
    tn_err e = TN_ERR_INIT;

    pthread_barrier_wait(&r->line);
    ck_assert_int_eq(tn_work_wait(w, LONG, &e), TN_EPEER);
    ck_assert_str_eq(e.msg, "gone");
    tn_work_unref(w);
    return NULL;
}

START_TEST(a_finish_wakes_every_waiter) {
    for (int i = 0; i < ROUNDS; i++) {
        race r;
        pthread_t t[THREADS];
        tn_err e;

        race_init(&r, THREADS + 1);
        spawn(t, THREADS, waiter, &r);
        tn_fail(&e, TN_EPEER, "gone");
        pthread_barrier_wait(&r.line);
        ck_assert(tn_work_finish(r.w, &e));
        join(t, THREADS);
        race_release(&r);
    }
}
END_TEST

static void *finisher(void *arg) {
    race *r = arg;

    pthread_barrier_wait(&r->line);
    if (tn_work_finish(r->w, NULL))
        atomic_fetch_add(&r->finished, 1);
    return NULL;
}

static void note_called(void *arg, tn_work *w) {
    race *r = arg;

    ck_assert_ptr_eq(w, r->w);
    atomic_fetch_add(&r->called, 1);
}

static void *registrar(void *arg) {
    race *r = arg;

    pthread_barrier_wait(&r->line);
    if (tn_work_on_done(r->w, note_called, r))
        atomic_fetch_add(&r->registered, 1);
    return NULL;
}

START_TEST(one_finish_and_one_callback_of_many) {
    for (int i = 0; i < ROUNDS; i++) {
        race r;
        pthread_t f[THREADS], g[THREADS];

        race_init(&r, 2 * THREADS);
        spawn(f, THREADS, finisher, &r);
        spawn(g, THREADS, registrar, &r);
        join(f, THREADS);
        join(g, THREADS);
        ck_assert_int_eq(atomic_load(&r.finished), 1);
        ck_assert_int_eq(atomic_load(&r.registered), 1);
        ck_assert_int_eq(atomic_load(&r.called), 1);
        race_release(&r);
    }
}
END_TEST

static void *aborter(void *arg) {
    race *r = arg;

    pthread_barrier_wait(&r->line);
    tn_work_abort(r->w, TN_ECANCELED);
    return NULL;
}

static void note_cancel(void *arg, tn_code why) {
    race *r = arg;

    ck_assert_int_eq(why, TN_ECANCELED);
    atomic_fetch_add(&r->cancelled, 1);
}

static void *provider(void *arg) {
    race *r = arg;

    pthread_barrier_wait(&r->line);
    if (tn_work_start(r->w, note_cancel, r))
        atomic_store(&r->finished, tn_work_finish(r->w, NULL));
    return NULL;
}

/* Aborts against start and finish: the work either ran (cancelled at most once) or was aborted before. */
START_TEST(abort_races_with_start_and_finish) {
    for (int i = 0; i < ROUNDS; i++) {
        race r;
        pthread_t a[2], p;
        tn_code code;

        race_init(&r, 3);
        spawn(a, 2, aborter, &r);
        spawn(&p, 1, provider, &r);
        code = tn_work_wait(r.w, LONG, NULL);
        join(a, 2);
        join(&p, 1);
        ck_assert_int_le(atomic_load(&r.cancelled), 1);
        if (atomic_load(&r.finished)) {
            ck_assert_int_eq(code, TN_OK);
        } else {
            ck_assert_int_eq(code, TN_ECANCELED);
            ck_assert_int_eq(atomic_load(&r.cancelled), 0);
        }
        race_release(&r);
    }
}
END_TEST

static void *last_one_out(void *arg) {
    race *r = arg;

    pthread_barrier_wait(&r->line);
    tn_work_unref(r->w);
    return NULL;
}

START_TEST(the_last_reference_frees_it) {
    for (int i = 0; i < ROUNDS; i++) {
        race r;
        pthread_t t[THREADS];

        race_init(&r, THREADS);
        for (int k = 1; k < THREADS; k++)
            tn_work_ref(r.w);
        spawn(t, THREADS, last_one_out, &r);
        join(t, THREADS);
        pthread_barrier_destroy(&r.line);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("core/work");
    TCase *one = tcase_create("one thread"), *many = tcase_create("several threads");
    SRunner *r = srunner_create(s);
    int failed;

    tcase_set_timeout(one, 60);
    tcase_set_timeout(many, 120);
    suite_add_tcase(s, one);
    suite_add_tcase(s, many);
    tcase_add_test(one, success);
    tcase_add_test(one, only_the_first_finish_counts);
    tcase_add_test(one, a_timed_out_wait_leaves_it_running);
    tcase_add_test(one, aborted_before_it_began);
    tcase_add_test(one, abort_asks_the_provider_once);
    tcase_add_test(one, cancel_may_finish_from_inside);
    tcase_add_test(one, abort_of_what_cannot_be_stopped);
    tcase_add_test(one, the_callback_runs_once);
    tcase_add_test(one, the_callback_may_drop_a_reference);
    tcase_add_test(many, a_finish_wakes_every_waiter);
    tcase_add_test(many, one_finish_and_one_callback_of_many);
    tcase_add_test(many, abort_races_with_start_and_finish);
    tcase_add_test(many, the_last_reference_frees_it);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* One rank of a test of shrinking groups. Options: dist_rank.h. */
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "tests/sim/dist_rank.h"

static void sleep_for(int64_t ns) {
    struct timespec ts = {.tv_sec = ns / TN_SECOND, .tv_nsec = ns % TN_SECOND};

    nanosleep(&ts, NULL);
}

/* Sums until something goes wrong: how it did. */
static tn_code until_failure(tn_err *err) {
    tn_code code = TN_OK;
    int i;

    for (i = 0; code == TN_OK; i++) {
        code = sum_round(i, NULL, err);
        if (code == TN_OK)
            check_sum(i);
    }
    return code;
}

/* The new group must hold `old[0..n-1]` of the old ranks, and work. Takes the place of the old one. */
static void go_on(tn_pg *next, const int *ranks, const int *old, int n) {
    int sum = 0, i, me = -1;
    tn_err err = TN_ERR_INIT;

    if (tn_pg_size(next) != n)
        die("%d ranks are left instead of %d", tn_pg_size(next), n);
    for (i = 0; i < n; i++) {
        if (ranks[i] != old[i])
            die("new rank %d is old rank %d instead of %d", i, ranks[i], old[i]);
        if (ranks[i] == opt.rank)
            me = i;
        sum += ranks[i];
    }
    if (tn_pg_rank(next) != me)
        die("this rank is %d of the new group instead of %d", tn_pg_rank(next), me);
    tn_pg_free(g, TN_SECOND);
    g = next;
    for (i = 0; i < 10; i++) {
        need(sum_round(i, NULL, &err), &err);
        check_sum_of(i, sum, n);
    }
}

/* All ranks but those of the victim= (and the one after it, if two) in order. */
static int others(int *old, int first, int count) {
    int n = 0, r;

    for (r = 0; r < opt.size; r++)
        if (r < first || r >= first + count)
            old[n++] = r;
    return n;
}

/* The test kills the victim, somewhere in the loop. */
static void mode_killed(void) {
    tn_pg_shrink_opts o = {.timeout_ns = 40 * TN_SECOND};
    int ranks[MAX_RANKS], old[MAX_RANKS], n = others(old, opt.victim, 1);
    tn_err err = TN_ERR_INIT;
    char words[40];
    tn_pg *next = NULL;
    tn_code code;
    int64_t began;

    need(sum_round(0, NULL, &err), &err);
    gate("ready");
    code = until_failure(&err);
    snprintf(words, sizeof(words), "rank %d is gone", opt.victim);
    must_fail(code, &err, TN_EPEER, words, time_of("cut"), 5 * TN_SECOND);
    began = tn_now();
    need(tn_pg_shrink(g, &o, &next, ranks, &err), &err);
    if (tn_now() - began > 10 * TN_SECOND)
        die("shrinking took %.3f s", (double)(tn_now() - began) / 1e9);
    if (tn_pg_shrink(g, &o, &next, ranks, &err) != TN_EINVAL)
        die("a group was shrunk twice");
    go_on(next, ranks, old, n);
}

static void *suicide(void *arg) {
    sleep_for(*(int64_t *)arg);
    raise(SIGKILL);
    return NULL;
}

/* The victim is killed by the test, and the next rank dies while it shrinks, `which` tenths of a millisecond
 * after it began. */
static void mode_second_death(void) {
    tn_pg_shrink_opts o = {.timeout_ns = 40 * TN_SECOND};
    int ranks[MAX_RANKS], old[MAX_RANKS], n = others(old, opt.victim, 2);
    int64_t delay = opt.which * 100000;
    tn_err err = TN_ERR_INIT;
    tn_pg *next = NULL;
    tn_code code;
    pthread_t t;

    need(sum_round(0, NULL, &err), &err);
    gate("ready");
    (void)until_failure(&err);
    if (opt.rank == opt.victim + 1 && pthread_create(&t, NULL, suicide, &delay) != 0)
        die("no thread");
    code = tn_pg_shrink(g, &o, &next, ranks, &err);
    if (opt.rank == opt.victim + 1)
        for (;;)
            sleep_for(TN_SECOND);
    need(code, &err);
    if (tn_pg_size(next) ==
        n + 1) { /* it died when everything was over: so this group fails, and shrinks again */
        int inner[MAX_RANKS], i;
        tn_pg *last;

        for (i = 0; code == TN_OK; i++)
            code = sum_round_in(next, i, NULL, &err);
        need(tn_pg_shrink(next, &o, &last, inner, &err), &err);
        for (i = 0; i < tn_pg_size(last); i++)
            ranks[i] = ranks[inner[i]];
        tn_pg_free(next, TN_SECOND);
        next = last;
    }
    go_on(next, ranks, old, n);
}

/* The test kills two of four: the victim and the next. Half is left: with rank 0 it goes on; else only if
 * `which` allows it. */
static void mode_half(void) {
    tn_pg_shrink_opts o = {.timeout_ns = 40 * TN_SECOND, .minority = opt.which != 0};
    int ranks[MAX_RANKS], old[MAX_RANKS], n = others(old, opt.victim, 2);
    tn_err err = TN_ERR_INIT;
    tn_pg *next = NULL;
    tn_code code;

    need(sum_round(0, NULL, &err), &err);
    gate("ready");
    (void)until_failure(&err);
    (void)time_of("cut");
    code = tn_pg_shrink(g, &o, &next, ranks, &err);
    if (opt.victim > 0 || o.minority) {
        need(code, &err);
        go_on(next, ranks, old, n);
        return;
    }
    /* Whom else it could still reach depends on who gave up first. */
    must_fail(code, &err, TN_EPEER, "of 4 can be reached, which is no majority", tn_now(), TN_SECOND);
    if (tn_pg_shrink(g, &o, &next, ranks, &err) != TN_EINVAL)
        die("a rank that has left the vote came back");
}

/* Nobody is gone: the same ranks again, from a group that has not even failed. */
static void mode_whole(void) {
    int ranks[MAX_RANKS], old[MAX_RANKS], n = others(old, 0, 0);
    tn_err err = TN_ERR_INIT;
    tn_pg *next = NULL;

    need(sum_round(0, NULL, &err), &err);
    gate("ready"); /* who shrinks fails the sums of the others */
    need(tn_pg_shrink(g, NULL, &next, ranks, &err), &err);
    go_on(next, ranks, old, n);
}

/* The victim stops for longer than the others wait for it, and finds that they went on. */
static void mode_late(void) {
    tn_pg_shrink_opts o = {.timeout_ns = 4 * TN_SECOND};
    tn_pg_call soon = {.timeout_ns = TN_SECOND};
    int ranks[MAX_RANKS], old[MAX_RANKS], n = others(old, opt.victim, 1);
    tn_err err = TN_ERR_INIT;
    tn_pg *next = NULL, *first = g;
    tn_code code;

    need(sum_round(0, NULL, &err), &err);
    gate("ready");
    if (opt.rank == opt.victim) {
        raise(SIGSTOP); /* the test lets it go on when the others have a new group */
        code = tn_pg_shrink(g, &o, &next, ranks, &err);
        must_fail(code, &err, TN_EPEER, "went on without this rank", tn_now(), TN_SECOND);
        gate("over");
        return;
    }
    code = sum_round(1, &soon, &err);
    must_fail(code, &err, TN_ETIMEDOUT, "waiting for rank", tn_now(), TN_SECOND);
    need(tn_pg_shrink(g, &o, &next, ranks, &err), &err);
    g = NULL; /* the old one stays, to answer who comes late */
    go_on(next, ranks, old, n);
    gate("over");
    tn_pg_free(first, TN_SECOND);
}

/* Hosts 2 and 3 are cut off, from each other too: 0 and 1 are half, with rank 0. */
static void mode_split(void) {
    tn_pg_shrink_opts o = {.timeout_ns = 20 * TN_SECOND};
    int ranks[MAX_RANKS], old[] = {0, 1};
    tn_err err = TN_ERR_INIT;
    tn_pg *next = NULL;
    tn_code code;

    need(sum_round(0, NULL, &err), &err);
    gate("ready");
    (void)until_failure(&err);
    code = tn_pg_shrink(g, &o, &next, ranks, &err);
    if (opt.rank < 2) {
        need(code, &err);
        go_on(next, ranks, old, 2);
    } else if (code != TN_EPEER || strstr(err.msg, "no majority") == NULL) {
        die("a rank alone went on, or did not say why not: %s", err.msg);
    }
    gate("over");
}

int main(int argc, char **argv) {
    static const mode modes[] = {
        {"killed", mode_killed, false}, {"second_death", mode_second_death, false},
        {"half", mode_half, false},     {"whole", mode_whole, false},
        {"late", mode_late, false},     {"split", mode_split, false},
    };

    return play(argc, argv, modes, sizeof(modes) / sizeof(modes[0]));
}

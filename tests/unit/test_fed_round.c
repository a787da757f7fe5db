/* The round machine: by example, and by a random walk whose every step an independent watcher judges.
 *
 * The watcher knows the contract (fed/fed.h), not the code: it is given the events and what came out, and
 * says what is wrong. That it can is shown by injecting faults between the machine and it: each kind must be
 * caught. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "fed/fed.h"

#define S TN_SECOND

/* ---- By example ---- */

static tn_round_cfg plain(void) {
    return (tn_round_cfg){.rounds = 3,
                          .start_clients = 2,
                          .min_clients = 2,
                          .over_select = 1,
                          .deadline_ns = 60 * S,
                          .resume_ns = 5 * S,
                          .wait_timeout_ns = TN_FOREVER,
                          .notice_ns = 30 * S,
                          .seed = 7};
}

static tn_round *machine(const tn_round_cfg *cfg, uint64_t committed, int64_t now) {
    tn_round *m = NULL;
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(tn_round_new(&m, cfg, committed, now, &err) == TN_OK, "%s", err.msg);
    return m;
}

static void feed(tn_round *m, tn_round_ev_kind kind, const char *client, int64_t now) {
    tn_round_ev ev = {.kind = kind, .client = client};
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(tn_round_event(m, &ev, now, &err) == TN_OK, "%s", err.msg);
}

static const char *const act_name[] = {"WAITING", "START", "DROPPED", "COMMIT", "RETRY", "FINISHED", "FAILED"};

/* The actions waiting, as text: "DROPPED a, COMMIT 2/2". */
static const char *actions(tn_round *m) {
    static char text[1000];
    size_t n = 0;
    tn_round_act a;

    text[0] = '\0';
    while (tn_round_action(m, &a)) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n == 0 ? "" : ", ", act_name[a.kind]);
        if (a.kind == TN_ACT_DROPPED)
            n += (size_t)snprintf(text + n, sizeof(text) - n, " %s", a.client);
        else if (a.kind == TN_ACT_START)
            n += (size_t)snprintf(text + n, sizeof(text) - n, " %" PRIu64 ".%" PRIu32 " %" PRIu32 "/%" PRIu32,
                                  a.round,
                                  a.attempt, a.have, a.need);
        else if (a.kind != TN_ACT_FINISHED)
            n += (size_t)snprintf(text + n, sizeof(text) - n, " %" PRIu32 "/%" PRIu32, a.have, a.need);
    }
    return text;
}

static tn_code may(const tn_round *m, const char *client, uint64_t round, uint32_t attempt) {
    tn_err err = TN_ERR_INIT;
    tn_code code = tn_round_may_update(m, client, round, attempt, &err);

    ck_assert(code == TN_OK || err.msg[0] != '\0');
    return code;
}

START_TEST(a_run) {
    tn_round_cfg cfg = plain();
    tn_round *m = machine(&cfg, 0, 0);
    const char *const *ids;

    ck_assert_str_eq(actions(m), "WAITING 0/2");
    ck_assert_int_eq(may(m, "a", 1, 1), TN_EROUND);
    feed(m, TN_EV_JOIN, "b", 1);
    ck_assert_str_eq(actions(m), "WAITING 1/2");
    feed(m, TN_EV_JOIN, "b", 2);
    ck_assert_str_eq(actions(m), "");
    feed(m, TN_EV_JOIN, "a", 3);
    ck_assert_str_eq(actions(m), "START 1.1 2/2");
    ck_assert_int_eq(tn_round_deadline(m), 3 + 60 * S);
    ck_assert_uint_eq(tn_round_cohort(m, &ids), 2);
    ck_assert_str_eq(ids[0], "a");
    ck_assert_str_eq(ids[1], "b");
    feed(m, TN_EV_JOIN, "late", 4); /* waits for the next round */
    ck_assert_int_eq(may(m, "late", 1, 1), TN_EROUND);
    ck_assert_int_eq(may(m, "a", 1, 2), TN_EROUND);
    ck_assert_int_eq(may(m, "a", 2, 1), TN_EROUND);
    ck_assert_int_eq(may(m, "a", 0, 1), TN_EROUND);
    ck_assert_int_eq(may(m, "a", 1, 1), TN_OK);
    feed(m, TN_EV_UPDATE, "late", 5);
    feed(m, TN_EV_UPDATE, "stranger", 5);
    feed(m, TN_EV_UPDATE, "a", 5);
    feed(m, TN_EV_UPDATE, "a", 6);
    ck_assert_str_eq(actions(m), "");
    ck_assert_int_eq(may(m, "a", 1, 1), TN_EBUSY);
    ck_assert_uint_eq(tn_round_reported(m, &ids), 1);
    feed(m, TN_EV_UPDATE, "b", 7);
    ck_assert_str_eq(actions(m), "COMMIT 2/2");
    ck_assert_int_eq(tn_round_state_of(m), TN_COMMITTING);
    ck_assert_uint_eq(tn_round_reported(m, &ids), 2);
    feed(m, TN_EV_COMMITTED, NULL, 8);
    ck_assert_str_eq(actions(m), "START 2.1 3/3");
    /* The acknowledgement of round 1 may have been lost: it is given again. */
    ck_assert_int_eq(may(m, "a", 1, 1), TN_EBUSY);
    ck_assert_int_eq(may(m, "late", 1, 1), TN_EROUND);
    tn_round_free(m);
}
END_TEST

START_TEST(start_needs_more_than_going_on) {
    tn_round_cfg cfg = plain();
    tn_round *m;

    cfg.start_clients = 3;
    cfg.min_clients = 1;
    m = machine(&cfg, 0, 0);
    feed(m, TN_EV_JOIN, "a", 0);
    feed(m, TN_EV_JOIN, "b", 0);
    ck_assert_str_eq(actions(m), "WAITING 0/3, WAITING 1/3, WAITING 2/3");
    feed(m, TN_EV_BREAK, "b", 0);
    ck_assert_str_eq(actions(m), "WAITING 1/3");
    feed(m, TN_EV_JOIN, "b", 0);
    feed(m, TN_EV_JOIN, "c", 0);
    ck_assert_str_eq(actions(m), "WAITING 2/3, START 1.1 3/3");
    feed(m, TN_EV_LEAVE, "b", 0);
    feed(m, TN_EV_LEAVE, "c", 0);
    feed(m, TN_EV_LEAVE, "a", 0);
    /* Nobody is left to wait for; after a retry one client is enough. */
    ck_assert_str_eq(actions(m), "DROPPED b, DROPPED c, DROPPED a, RETRY 0/1, WAITING 0/1");
    feed(m, TN_EV_JOIN, "a", 0);
    ck_assert_str_eq(actions(m), "START 1.2 1/1");
    tn_round_free(m);
    m = machine(&cfg, 1, 0); /* a run that was restarted */
    ck_assert_str_eq(actions(m), "WAITING 0/1");
    tn_round_free(m);
}
END_TEST

START_TEST(notices_and_the_wait_timeout) {
    tn_round_cfg cfg = plain();
    tn_round *m;
    tn_round_act a;

    cfg.wait_timeout_ns = 100 * S;
    m = machine(&cfg, 0, 10 * S);
    ck_assert_str_eq(actions(m), "WAITING 0/2");
    ck_assert_int_eq(tn_round_next_tick(m), 40 * S);
    feed(m, TN_EV_JOIN, "a", 20 * S);
    ck_assert(tn_round_action(m, &a));
    ck_assert_str_eq(a.text, "waiting for 2 clients, 1 is here");
    ck_assert_int_eq(tn_round_next_tick(m), 50 * S);
    feed(m, TN_EV_TICK, NULL, 49 * S);
    ck_assert_str_eq(actions(m), "");
    feed(m, TN_EV_TICK, NULL, 50 * S);
    ck_assert_str_eq(actions(m), "WAITING 1/2");
    feed(m, TN_EV_TICK, NULL, 80 * S);
    ck_assert_str_eq(actions(m), "WAITING 1/2");
    ck_assert_int_eq(tn_round_next_tick(m), 110 * S);
    feed(m, TN_EV_TICK, NULL, 110 * S);
    ck_assert(tn_round_action(m, &a));
    ck_assert_int_eq(a.kind, TN_ACT_FAILED);
    ck_assert_str_eq(a.text, "waited 100 s for 2 clients, 1 is here");
    ck_assert_int_eq(tn_round_state_of(m), TN_FAILED);
    ck_assert_int_eq(tn_round_next_tick(m), TN_FOREVER);
    tn_round_free(m);
}
END_TEST

/* Cohort a, b, c in round 1. */
static tn_round *training(tn_round_cfg *cfg) {
    tn_round *m;

    cfg->start_clients = 3;
    m = machine(cfg, 0, 0);
    feed(m, TN_EV_JOIN, "a", 0);
    feed(m, TN_EV_JOIN, "b", 0);
    feed(m, TN_EV_JOIN, "c", 0);
    actions(m);
    ck_assert_int_eq(tn_round_state_of(m), TN_TRAINING);
    return m;
}

START_TEST(broken_members) {
    tn_round_cfg cfg = plain();
    tn_round *m = training(&cfg);
    tn_round_act a;

    feed(m, TN_EV_BREAK, "a", 1 * S);
    feed(m, TN_EV_BREAK, "b", 2 * S);
    ck_assert_int_eq(tn_round_next_tick(m), 6 * S);
    feed(m, TN_EV_JOIN, "a", 3 * S);
    ck_assert_int_eq(tn_round_next_tick(m), 7 * S);
    feed(m, TN_EV_TICK, NULL, 7 * S - 1);
    ck_assert_str_eq(actions(m), "");
    feed(m, TN_EV_TICK, NULL, 7 * S);
    ck_assert(tn_round_action(m, &a));
    ck_assert_int_eq(a.kind, TN_ACT_DROPPED);
    ck_assert_str_eq(a.client, "b");
    ck_assert_str_eq(a.text, "its connection broke and it did not come back within 5 s");
    feed(m, TN_EV_JOIN, "b", 8 * S); /* too late for this round */
    ck_assert_int_eq(may(m, "b", 1, 1), TN_EROUND);
    ck_assert(!tn_round_in_cohort(m, "b"));
    feed(m, TN_EV_UPDATE, "a", 9 * S);
    feed(m, TN_EV_BREAK, "a", 10 * S); /* who reported still counts */
    feed(m, TN_EV_TICK, NULL, 20 * S);
    ck_assert_str_eq(actions(m), "");
    feed(m, TN_EV_UPDATE, "c", 21 * S);
    ck_assert_str_eq(actions(m), "COMMIT 2/2");
    feed(m, TN_EV_COMMITTED, NULL, 22 * S);
    ck_assert_str_eq(actions(m), "START 2.1 2/2");
    ck_assert(tn_round_in_cohort(m, "b"));
    ck_assert_int_eq(may(m, "a", 1, 1), TN_EBUSY); /* gone, and remembered for a round */
    tn_round_free(m);
}
END_TEST

START_TEST(an_update_that_outlived_its_connection) {
    tn_round_cfg cfg = plain();
    tn_round *m = training(&cfg);

    feed(m, TN_EV_BREAK, "a", 1 * S);
    feed(m, TN_EV_UPDATE, "a", 2 * S); /* was durable before the connection broke */
    feed(m, TN_EV_TICK, NULL, 30 * S);
    ck_assert_str_eq(actions(m), "");
    ck_assert_int_eq(may(m, "a", 1, 1), TN_EBUSY);
    feed(m, TN_EV_BREAK, "b", 31 * S);
    feed(m, TN_EV_TICK, NULL, 36 * S);
    feed(m, TN_EV_UPDATE, "b", 37 * S); /* it left before: not counted, and may_update says so */
    ck_assert_int_eq(may(m, "b", 1, 1), TN_EROUND);
    tn_round_free(m);
}
END_TEST

/* CASES 20: a third client sleeps for ever. */
START_TEST(the_deadline_closes_with_those_who_came) {
    tn_round_cfg cfg = plain();
    tn_round *m;

    cfg.deadline_ns = 1 * S;
    m = training(&cfg);
    feed(m, TN_EV_UPDATE, "a", 1);
    feed(m, TN_EV_UPDATE, "c", 2);
    ck_assert_int_eq(tn_round_next_tick(m), 1 * S);
    feed(m, TN_EV_TICK, NULL, 1 * S);
    ck_assert_str_eq(actions(m), "DROPPED b, COMMIT 2/2");
    ck_assert_int_eq(may(m, "b", 1, 1), TN_EROUND);
    tn_round_free(m);
}
END_TEST

START_TEST(too_few_at_the_deadline) {
    tn_round_cfg cfg = plain();
    tn_round *m = training(&cfg);
    const char *const *ids;

    feed(m, TN_EV_UPDATE, "a", 1);
    feed(m, TN_EV_TICK, NULL, 60 * S);
    ck_assert_str_eq(actions(m), "DROPPED b, DROPPED c, RETRY 1/2, START 1.2 3/3");
    ck_assert_uint_eq(tn_round_reported(m, &ids), 0);
    ck_assert_int_eq(may(m, "a", 1, 1), TN_EROUND); /* the update of attempt 1 was dropped */
    ck_assert_int_eq(may(m, "a", 1, 2), TN_OK);
    tn_round_free(m);
}
END_TEST

START_TEST(refused_updates) {
    tn_round_cfg cfg = plain();
    tn_round *m = training(&cfg);

    feed(m, TN_EV_REFUSED, "a", 1);
    feed(m, TN_EV_REFUSED, "a", 2);
    ck_assert_str_eq(actions(m), "DROPPED a");
    feed(m, TN_EV_UPDATE, "b", 3);
    feed(m, TN_EV_REFUSED, "b", 4); /* a second update of b; the first one counts */
    feed(m, TN_EV_UPDATE, "c", 5);
    ck_assert_str_eq(actions(m), "COMMIT 2/2");
    tn_round_free(m);
}
END_TEST

/* With as few clients as a round needs, a refused one must not start attempt after attempt. */
START_TEST(refused_clients_wait_for_the_next_round) {
    tn_round_cfg cfg = plain();
    tn_round *m;

    cfg.min_clients = cfg.start_clients = 3;
    m = training(&cfg);
    feed(m, TN_EV_UPDATE, "a", 1);
    feed(m, TN_EV_UPDATE, "b", 2);
    feed(m, TN_EV_REFUSED, "c", 3);
    ck_assert_str_eq(actions(m), "DROPPED c, RETRY 2/3, WAITING 2/3");
    feed(m, TN_EV_BREAK, "c", 4);
    feed(m, TN_EV_JOIN, "c", 5);
    ck_assert_str_eq(actions(m), "");
    feed(m, TN_EV_JOIN, "d", 6);
    ck_assert_str_eq(actions(m), "START 1.2 3/3");
    feed(m, TN_EV_UPDATE, "a", 7);
    feed(m, TN_EV_UPDATE, "b", 8);
    feed(m, TN_EV_UPDATE, "d", 9);
    feed(m, TN_EV_COMMITTED, NULL, 10);
    ck_assert_str_eq(actions(m), "COMMIT 3/3, START 2.1 4/4");
    tn_round_free(m);
}
END_TEST

START_TEST(over_selection) {
    tn_round_cfg cfg = plain();
    tn_round *m;
    char id[24];
    const char *const *ids;
    const char *mine[6];

    cfg.clients_per_round = 4;
    cfg.over_select = 1.5;
    cfg.start_clients = 10;
    m = machine(&cfg, 0, 0);
    for (int i = 0; i < 10; i++) {
        snprintf(id, sizeof(id), "c%d", i);
        feed(m, TN_EV_JOIN, id, 0);
    }
    ck_assert_ptr_nonnull(strstr(actions(m), "START 1.1 6/4"));
    ck_assert_uint_eq(tn_round_cohort(m, &ids), 6);
    memcpy(mine, ids, sizeof(mine));
    for (int i = 0; i < 3; i++)
        feed(m, TN_EV_UPDATE, mine[i], 1);
    ck_assert_str_eq(actions(m), "");
    feed(m, TN_EV_UPDATE, mine[3], 1);
    ck_assert_str_eq(actions(m), "COMMIT 4/2");
    ck_assert_int_eq(may(m, mine[4], 1, 1), TN_EROUND);
    feed(m, TN_EV_UPDATE, mine[4], 1);
    ck_assert_uint_eq(tn_round_reported(m, &ids), 4);
    tn_round_free(m);
}
END_TEST

START_TEST(stopping) {
    tn_round_cfg cfg = plain();
    tn_round *m = machine(&cfg, 0, 0);

    feed(m, TN_EV_STOP, NULL, 0);
    ck_assert_str_eq(actions(m), "WAITING 0/2, FINISHED");
    tn_round_free(m);
    m = training(&cfg);
    feed(m, TN_EV_STOP, NULL, 1);
    ck_assert_str_eq(actions(m), "");
    for (const char *id = "abc"; *id != '\0'; id++)
        feed(m, TN_EV_UPDATE, (char[]){*id, '\0'}, 2);
    ck_assert_str_eq(actions(m), "COMMIT 3/2");
    feed(m, TN_EV_STOP, NULL, 3);
    feed(m, TN_EV_COMMITTED, NULL, 4);
    ck_assert_str_eq(actions(m), "FINISHED");
    feed(m, TN_EV_STOP, NULL, 5);
    feed(m, TN_EV_COMMITTED, NULL, 6);
    ck_assert_str_eq(actions(m), "");
    tn_round_free(m);
    m = training(&cfg);
    feed(m, TN_EV_STOP, NULL, 1);
    feed(m, TN_EV_TICK, NULL, 60 * S);
    ck_assert_str_eq(actions(m), "DROPPED a, DROPPED b, DROPPED c, RETRY 0/2, FINISHED");
    tn_round_free(m);
}
END_TEST

START_TEST(a_commit_that_fails) {
    tn_round_cfg cfg = plain();
    tn_round *m = training(&cfg);

    feed(m, TN_EV_COMMIT_FAILED, NULL, 1);
    ck_assert_str_eq(actions(m), "");
    for (const char *id = "abc"; *id != '\0'; id++)
        feed(m, TN_EV_UPDATE, (char[]){*id, '\0'}, 2);
    ck_assert_str_eq(actions(m), "COMMIT 3/2");
    feed(m, TN_EV_COMMIT_FAILED, NULL, 3);
    ck_assert_str_eq(actions(m), "FAILED 0/0");
    feed(m, TN_EV_COMMITTED, NULL, 4);
    ck_assert_str_eq(actions(m), "");
    ck_assert_int_eq(tn_round_state_of(m), TN_FAILED);
    tn_round_free(m);
}
END_TEST

START_TEST(all_rounds_committed_before) {
    tn_round_cfg cfg = plain();
    tn_round *m = machine(&cfg, 3, 0);

    ck_assert_str_eq(actions(m), "FINISHED");
    ck_assert_int_eq(tn_round_next_tick(m), TN_FOREVER);
    tn_round_free(m);
}
END_TEST

START_TEST(restored) {
    static const char *const cohort[] = {"b", "a", "c"}, *const reported[] = {"b"}, *const two[] = {"a", "a"};
    tn_round_cfg cfg = plain();
    tn_round *m = machine(&cfg, 4 - 3, 100 * S);
    tn_err err = TN_ERR_INIT;
    const char *const *ids;

    cfg.rounds = 9;
    ck_assert_int_eq(tn_round_restore(m, 3, 1, cohort, 3, NULL, 0, 100 * S, &err), TN_EINVAL);
    ck_assert_int_eq(tn_round_restore(m, 2, 0, cohort, 3, NULL, 0, 100 * S, &err), TN_EINVAL);
    ck_assert_int_eq(tn_round_restore(m, 2, 1, two, 2, NULL, 0, 100 * S, &err), TN_EINVAL);
    ck_assert_int_eq(tn_round_restore(m, 2, 1, cohort, 1, cohort + 1, 1, 100 * S, &err), TN_EINVAL);
    ck_assert_int_eq(tn_round_restore(m, 2, 1, cohort, 3, two, 2, 100 * S, &err), TN_EINVAL);
    ck_assert_uint_eq(tn_round_cohort(m, &ids), 0); /* what failed left nothing behind */
    ck_assert_int_eq(tn_round_restore(m, 2, 4, cohort, 3, reported, 1, 100 * S, &err), TN_OK);
    ck_assert_str_eq(actions(m), "");
    ck_assert_uint_eq(tn_round_cohort(m, &ids), 3);
    ck_assert_str_eq(ids[0], "a");
    ck_assert_int_eq(tn_round_next_tick(m), 160 * S);
    ck_assert_int_eq(may(m, "b", 2, 4), TN_EBUSY);
    ck_assert_int_eq(may(m, "a", 2, 4), TN_OK);
    feed(m, TN_EV_TICK, NULL, 159 * S); /* the whole deadline to come back */
    ck_assert_str_eq(actions(m), "");
    feed(m, TN_EV_JOIN, "a", 159 * S);
    feed(m, TN_EV_UPDATE, "a", 159 * S);
    feed(m, TN_EV_TICK, NULL, 160 * S);
    ck_assert_str_eq(actions(m), "DROPPED c, COMMIT 2/2");
    ck_assert_int_eq(tn_round_restore(m, 2, 4, cohort, 3, reported, 1, 160 * S, &err), TN_EINVAL);
    tn_round_free(m);
    /* All had reported: the crash came before the commit. */
    m = machine(&cfg, 0, 0);
    ck_assert_int_eq(tn_round_restore(m, 1, 1, cohort, 3, cohort, 3, 0, &err), TN_OK);
    ck_assert_str_eq(actions(m), "COMMIT 3/2");
    tn_round_free(m);
    /* The crash came between two attempts: numbers are not used twice. */
    m = machine(&cfg, 0, 0);
    ck_assert_int_eq(tn_round_restore(m, 1, 5, NULL, 0, NULL, 0, 0, &err), TN_OK);
    ck_assert_str_eq(actions(m), "WAITING 0/2");
    feed(m, TN_EV_JOIN, "a", 0);
    feed(m, TN_EV_JOIN, "b", 0);
    ck_assert_str_eq(actions(m), "WAITING 1/2, START 1.6 2/2");
    tn_round_free(m);
}
END_TEST

START_TEST(settings_refused) {
#define BAD(field, value)                                                       \
    do {                                                                        \
        tn_round_cfg bad = plain();                                             \
        tn_round *none = NULL;                                                  \
        tn_err why = TN_ERR_INIT;                                               \
        bad.field = value;                                                      \
        ck_assert_int_eq(tn_round_new(&none, &bad, 0, 0, &why), TN_EINVAL);     \
        ck_assert_ptr_null(none);                                               \
        ck_assert_ptr_nonnull(strchr(why.msg, ' '));                            \
    } while (0)
    BAD(rounds, 0);
    BAD(min_clients, 0);
    BAD(start_clients, 1);
    BAD(start_clients, TN_MAX_CLIENTS + 1);
    BAD(clients_per_round, 1);
    BAD(fraction, -0.1);
    BAD(fraction, 1.1);
    BAD(fraction, __builtin_nan(""));
    BAD(over_select, 0.9);
    BAD(over_select, __builtin_inf());
    BAD(over_select, __builtin_nan(""));
    BAD(deadline_ns, 0);
    BAD(deadline_ns, TN_FOREVER);
    BAD(resume_ns, -1);
    BAD(resume_ns, TN_FOREVER);
    BAD(wait_timeout_ns, 0);
    BAD(notice_ns, 0);
#undef BAD
}
END_TEST

START_TEST(clients_refused) {
    static const char *const bad[] = {"", "-a", "a b", "a/b", "a\n", "\xc3\xa9",
                                      "12345678901234567890123456789012345678901234567890123456789012345"};
    tn_round_cfg cfg = plain();
    tn_round *m = machine(&cfg, 0, 0);
    tn_err err = TN_ERR_INIT;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tn_round_ev ev = {.kind = TN_EV_JOIN, .client = bad[i]};

        ck_assert(!tn_id_valid(bad[i]));
        ck_assert_int_eq(tn_round_event(m, &ev, 0, &err), TN_EINVAL);
    }
    ck_assert_int_eq(tn_round_event(m, &(tn_round_ev){.kind = TN_EV_BREAK}, 0, &err), TN_EINVAL);
    ck_assert(tn_id_valid("1234567890123456789012345678901234567890123456789012345678901234"));
    ck_assert(tn_id_valid("Hospital-3.ward_2"));
    ck_assert_uint_eq(tn_round_clients(m), 0);
    tn_round_free(m);
}
END_TEST

/* Every client is chosen about equally often; the same seed chooses the same, another one does not. */
START_TEST(the_choice_is_uniform_and_seeded) {
    enum { N = 20, K = 5, ROUNDS = 4000 };
    int times[N] = {0}, differ = 0;
    tn_round_cfg cfg = plain();
    tn_round *m, *same, *other;
    char id[24];
    const char *const *ids, *const *ids2;

    cfg.rounds = ROUNDS;
    cfg.clients_per_round = K;
    cfg.start_clients = N;
    m = machine(&cfg, 0, 0);
    same = machine(&cfg, 0, 0);
    cfg.seed = 8;
    other = machine(&cfg, 0, 0);
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "%02d", i);
        feed(m, TN_EV_JOIN, id, 0);
        feed(other, TN_EV_JOIN, id, 0);
        snprintf(id, sizeof(id), "%02d", N - 1 - i); /* another order of arrival */
        feed(same, TN_EV_JOIN, id, 0);
    }
    for (int r = 0; r < ROUNDS; r++) {
        tn_round *all[] = {m, same, other};
        char chosen[K][8];

        ck_assert_uint_eq(tn_round_cohort(m, &ids), K);
        ck_assert_uint_eq(tn_round_cohort(same, &ids2), K);
        for (int i = 0; i < K; i++) {
            ck_assert_str_eq(ids[i], ids2[i]);
            times[strtol(ids[i], NULL, 10)]++;
        }
        tn_round_cohort(other, &ids2);
        for (int i = 0; i < K; i++)
            differ += strcmp(ids[i], ids2[i]) != 0;
        for (size_t j = 0; j < 3; j++) {
            tn_round_cohort(all[j], &ids);
            for (int i = 0; i < K; i++)
                snprintf(chosen[i], sizeof(chosen[i]), "%.7s", ids[i]);
            for (int i = 0; i < K; i++)
                feed(all[j], TN_EV_UPDATE, chosen[i], 0);
            feed(all[j], TN_EV_COMMITTED, NULL, 0);
            actions(all[j]);
        }
    }
    /* Expected 1000 each, standard deviation sqrt(4000 * 1/4 * 3/4) = 27: five of them on either side. */
    for (int i = 0; i < N; i++)
        ck_assert_msg(times[i] > 1000 - 137 && times[i] < 1000 + 137, "client %d: %d times", i, times[i]);
    ck_assert_int_gt(differ, ROUNDS);
    tn_round_free(m);
    tn_round_free(same);
    tn_round_free(other);
}
END_TEST

START_TEST(many_clients) {
    enum { N = 20000 };
    tn_round_cfg cfg = plain();
    tn_round *m;
    char id[24];
    tn_round_act a;
    const char *const *ids;
    int dropped = 0;

    cfg.start_clients = N;
    m = machine(&cfg, 0, 0);
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "client-%d", i);
        feed(m, TN_EV_JOIN, id, 0);
        while (tn_round_action(m, &a))
            ;
    }
    ck_assert_uint_eq(tn_round_cohort(m, &ids), N);
    for (int i = 0; i < N; i += 2) {
        snprintf(id, sizeof(id), "client-%d", i);
        feed(m, TN_EV_BREAK, id, i);
    }
    for (int i = 1; i < N; i += 2) {
        snprintf(id, sizeof(id), "client-%d", i);
        feed(m, TN_EV_UPDATE, id, N);
        ck_assert(!tn_round_action(m, &a));
    }
    feed(m, TN_EV_TICK, NULL, 5 * S + N);
    while (tn_round_action(m, &a) && a.kind == TN_ACT_DROPPED)
        dropped++;
    ck_assert_int_eq(dropped, N / 2);
    ck_assert_int_eq(a.kind, TN_ACT_COMMIT);
    ck_assert_uint_eq(a.have, N / 2);
    feed(m, TN_EV_COMMITTED, NULL, 6 * S);
    ck_assert_uint_eq(tn_round_cohort(m, &ids), N / 2);
    tn_round_free(m);
}
END_TEST

/* ---- The watcher ---- */

#define CLIENTS 12

static const char *const name_of[CLIENTS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};

static int index_of(const char *id) { return id[0] >= 'a' && id[0] < 'a' + CLIENTS &&
                                     id[1] == '\0' ? id[0] - 'a' : -1; }

typedef struct watcher {
    tn_round_cfg cfg;
    int fraction_percent, over_quarters; /* the same settings in integers */
    tn_round_state state;
    uint64_t committed;
    uint32_t attempt;
    bool first, stopping;
    bool here[CLIENTS], waited[CLIENTS], reported[CLIENTS], before[CLIENTS];
    bool barred[CLIENTS]; /* refused in this round: not to be chosen again in it */
    bool left[CLIENTS], refused[CLIENTS]; /* in the event under way: reasons to be dropped */
    int64_t broke[CLIENTS];               /* when; -1: it did not */
    uint32_t target, chosen;
    int64_t deadline, now;
    char fault[600]; /* the first thing that was wrong */
} watcher;

#define FAULT(...)                                              \
    do {                                                        \
        if (w->fault[0] == '\0')                                \
            snprintf(w->fault, sizeof(w->fault), __VA_ARGS__);  \
    } while (0)

static uint32_t count(const bool *set) {
    uint32_t n = 0;

    for (int i = 0; i < CLIENTS; i++)
        n += set[i];
    return n;
}

static uint32_t choosable(const watcher *w) {
    uint32_t n = 0;

    for (int i = 0; i < CLIENTS; i++)
        n += w->here[i] && !w->barred[i];
    return n;
}

static uint32_t at_most(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t watch_need(const watcher *w) { return w->first ? w->cfg.start_clients : w->cfg.min_clients; }

/* Before the machine gets it. */
static void watch_event(watcher *w, const tn_round_ev *ev, int64_t now) {
    int c = ev->client != NULL ? index_of(ev->client) : -1;

    w->now = now;
    memset(w->left, 0, sizeof(w->left));
    memset(w->refused, 0, sizeof(w->refused));
    switch (ev->kind) {
    case TN_EV_JOIN:
        w->here[c] = true;
        w->broke[c] = -1;
        break;
    case TN_EV_BREAK:
        if (w->here[c] && w->waited[c])
            w->broke[c] = now;
        w->here[c] = false;
        break;
    case TN_EV_LEAVE:
        w->here[c] = false;
        w->left[c] = true;
        break;
    case TN_EV_UPDATE:
        if (w->state == TN_TRAINING && w->waited[c]) {
            w->waited[c] = false;
            w->reported[c] = true;
        }
        break;
    case TN_EV_REFUSED:
        w->refused[c] = true;
        if (w->state == TN_TRAINING && w->waited[c])
            w->barred[c] = true;
        break;
    case TN_EV_COMMITTED:
        if (w->state == TN_COMMITTING) {
            w->committed++;
            w->attempt = 0;
            w->first = false;
            w->state = w->committed >= w->cfg.rounds || w->stopping ? TN_FINISHED : TN_GATHERING;
            memcpy(w->before, w->reported, sizeof(w->before));
            memset(w->reported, 0, sizeof(w->reported));
            memset(w->waited, 0, sizeof(w->waited));
            memset(w->barred, 0, sizeof(w->barred));
        }
        break;
    case TN_EV_COMMIT_FAILED:
        break;
    case TN_EV_STOP:
        w->stopping = true;
        break;
    case TN_EV_TICK:
        break;
    }
}

static void watch_start(watcher *w, const tn_round_act *a, const char *const *ids, size_t n) {
    uint32_t here = choosable(w), base = here, size;

    if (w->state != TN_GATHERING || here < watch_need(w) || w->stopping)
        FAULT("START where there was none to be");
    if (a->round != w->committed + 1)
        FAULT("START of round %" PRIu64 " after %" PRIu64, a->round, w->committed);
    if (a->attempt != w->attempt + 1)
        FAULT("START of attempt %" PRIu32 " after %" PRIu32, a->attempt, w->attempt);
    if (w->fraction_percent != 0) {
        base = (here * (uint32_t)w->fraction_percent + 99) / 100;
        base = base < w->cfg.min_clients ? w->cfg.min_clients : base;
    }
    if (w->cfg.clients_per_round != 0)
        base = at_most(base, w->cfg.clients_per_round);
    base = at_most(base, here);
    size = at_most((base * (uint32_t)w->over_quarters + 3) / 4, here);
    if (a->have != size || a->need != base || n != size)
        FAULT("START with %zu clients of %" PRIu32 ", %" PRIu32 " and %" PRIu32 " were due", n, here, size,
              base);
    for (size_t i = 0; i < n; i++) {
        int c = index_of(ids[i]);

        if (c < 0 || !w->here[c] || w->barred[c] || w->waited[c])
            FAULT("%s in the cohort, who is not here, was refused or is there twice", ids[i]);
        else
            w->waited[c] = true;
        if (i > 0 && strcmp(ids[i - 1], ids[i]) >= 0)
            FAULT("the cohort is not sorted");
        if (c >= 0)
            w->broke[c] = -1;
    }
    w->attempt = a->attempt;
    w->target = base;
    w->chosen = a->have;
    w->deadline = w->now + w->cfg.deadline_ns;
    w->state = TN_TRAINING;
}

static void watch_dropped(watcher *w, const tn_round_act *a) {
    int c = index_of(a->client);
    bool broke;

    if (w->state != TN_TRAINING || c < 0 || !w->waited[c]) {
        FAULT("DROPPED %s, who was not waited for", a->client);
        return;
    }
    broke = w->broke[c] >= 0 && !w->here[c] && w->now >= w->broke[c] + w->cfg.resume_ns;
    if (!broke && !w->left[c] && !w->refused[c] && w->now < w->deadline)
        FAULT("DROPPED %s without a reason", a->client);
    w->waited[c] = false;
}

static void watch_commit(watcher *w, const char *const *ids, size_t n) {
    bool seen[CLIENTS] = {false};

    if (w->state != TN_TRAINING)
        FAULT("COMMIT where no round was under way");
    if (count(w->waited) != 0 && count(w->reported) < w->target && w->now < w->deadline)
        FAULT("COMMIT while %" PRIu32 " were waited for", count(w->waited));
    if (n < w->cfg.min_clients)
        FAULT("COMMIT with %zu reports, %" PRIu32 " are needed", n, w->cfg.min_clients);
    for (size_t i = 0; i < n; i++) {
        int c = index_of(ids[i]);

        if (c < 0 || !w->reported[c])
            FAULT("%s counts and did not report", ids[i]);
        else if (seen[c])
            FAULT("%s counts twice", ids[i]);
        else
            seen[c] = true;
    }
    if (n != count(w->reported))
        FAULT("%zu count, %" PRIu32 " reported", n, count(w->reported));
    w->state = TN_COMMITTING;
}

static void watch_retry(watcher *w) {
    if (w->state != TN_TRAINING || count(w->reported) >= w->cfg.min_clients || count(w->waited) != 0)
        FAULT("RETRY with %" PRIu32 " reports and %" PRIu32 " waited for", count(w->reported),
              count(w->waited));
    memset(w->reported, 0, sizeof(w->reported));
    memset(w->waited, 0, sizeof(w->waited));
    w->state = TN_GATHERING;
    w->first = false;
}

static void watch_action(watcher *w, const tn_round_act *a, const char *const *ids, size_t n) {
    switch (a->kind) {
    case TN_ACT_WAITING:
        if (w->state != TN_GATHERING || a->have != choosable(w) || a->need != watch_need(w) ||
            a->have >= a->need)
            FAULT("WAITING %" PRIu32 "/%" PRIu32, a->have, a->need);
        break;
    case TN_ACT_START:
        watch_start(w, a, ids, n);
        break;
    case TN_ACT_DROPPED:
        watch_dropped(w, a);
        break;
    case TN_ACT_COMMIT:
        watch_commit(w, ids, n);
        break;
    case TN_ACT_RETRY:
        watch_retry(w);
        break;
    case TN_ACT_FINISHED:
        if (w->state == TN_GATHERING && w->stopping)
            w->state = TN_FINISHED;
        if (w->state != TN_FINISHED || a->round != w->committed)
            FAULT("FINISHED after %" PRIu64 " of %" PRIu64 " rounds", w->committed, w->cfg.rounds);
        break;
    case TN_ACT_FAILED:
        if (w->state != TN_GATHERING || w->cfg.wait_timeout_ns == TN_FOREVER)
            FAULT("FAILED");
        w->state = TN_FAILED;
        break;
    }
}

/* After all actions of an event. `acted`: there were some; `due`: the machine had asked for this moment. */
static void watch_after(watcher *w, const tn_round *m, bool acted, bool due) {
    if (tn_round_state_of(m) != w->state)
        FAULT("state %d, and the actions led to %d", (int)tn_round_state_of(m), (int)w->state);
    if (due && !acted && (w->state == TN_TRAINING || w->state == TN_GATHERING))
        FAULT("nothing happened at a moment that was asked for");
    if (w->state == TN_TRAINING && (count(w->waited) == 0 || count(w->reported) >= w->target ||
                                    w->now >= w->deadline))
        FAULT("still TRAINING with nobody to wait for, or after the deadline");
    if (w->state == TN_GATHERING && (choosable(w) >= watch_need(w) || w->stopping))
        FAULT("still GATHERING with enough clients");
    if ((w->state == TN_TRAINING || w->state == TN_GATHERING) &&
        (tn_round_next_tick(m) == TN_FOREVER || tn_round_next_tick(m) <= w->now))
        FAULT("no moment to come is asked for");
    for (int i = 0; i < CLIENTS && w->state == TN_TRAINING; i++) {
        if (w->waited[i] && !w->here[i] && w->broke[i] >= 0 && w->now >= w->broke[i] + w->cfg.resume_ns)
            FAULT("%s is waited for beyond its time to come back", name_of[i]);
        if (tn_round_in_cohort(m, name_of[i]) != (w->waited[i] || w->reported[i]))
            FAULT("%s: in the cohort or not", name_of[i]);
    }
    if (tn_round_number(m) != w->committed + 1 || tn_round_clients(m) != count(w->here))
        FAULT("numbers");
}

static void watch_may(watcher *w, const tn_round *m, int c, uint64_t round, uint32_t attempt) {
    bool under_way = w->state == TN_TRAINING || w->state == TN_COMMITTING;
    bool now = under_way && round == w->committed + 1 && attempt == w->attempt;
    tn_code want = TN_EROUND;

    if ((now && w->reported[c]) || (round != 0 && round == w->committed && w->before[c]))
        want = TN_EBUSY;
    else if (now && w->state == TN_TRAINING && w->waited[c])
        want = TN_OK;
    if (may(m, name_of[c], round, attempt) != want)
        FAULT("may_update(%s, %" PRIu64 ", %" PRIu32 ") is not %s", name_of[c], round, attempt,
              tn_code_name(want));
}

/* ---- Faults, between machine and watcher ---- */

typedef enum fault {
    SOUND,
    COUNTS_TWICE,
    COUNTS_OUTSIDER,
    LOSES_ONE,
    COMMITS_TOO_FEW,
    SKIPS_ROUND,
    SAME_ATTEMPT,
    FALLS_SILENT,
    NEVER_FINISHES,
    DROPS_SOMEBODY,
    FAULTS,
} fault;

typedef struct seen { /* an action as the watcher gets it */
    tn_round_act act;
    const char *id[CLIENTS + 1];
    size_t n;
    bool hidden;
} seen;

/* Returns whether the fault found its occasion. */
static bool inject(fault f, seen *s, const watcher *w) {
    tn_round_act *a = &s->act;

    if (f == COUNTS_TWICE && a->kind == TN_ACT_COMMIT)
        s->id[s->n++] = s->id[0];
    else if (f == COUNTS_OUTSIDER && a->kind == TN_ACT_COMMIT && s->n < CLIENTS) {
        for (int c = 0; c < CLIENTS; c++) {
            if (!w->reported[c])
                s->id[0] = name_of[c];
        }
    } else if (f == LOSES_ONE && a->kind == TN_ACT_COMMIT)
        s->n--;
    else if (f == COMMITS_TOO_FEW && a->kind == TN_ACT_RETRY)
        a->kind = TN_ACT_COMMIT;
    else if (f == SKIPS_ROUND && a->kind == TN_ACT_START)
        a->round++;
    else if (f == SAME_ATTEMPT && a->kind == TN_ACT_START)
        a->attempt--;
    else if (f == FALLS_SILENT && a->kind == TN_ACT_COMMIT)
        s->hidden = true;
    else if (f == NEVER_FINISHES && a->kind == TN_ACT_FINISHED && w->state != TN_FINISHED)
        s->hidden = true;
    else if (f == NEVER_FINISHES && a->kind == TN_ACT_FINISHED)
        a->round++;
    else if (f == DROPS_SOMEBODY && a->kind == TN_ACT_COMMIT) {
        a->kind = TN_ACT_DROPPED;
        snprintf(a->client, sizeof(a->client), "%s", s->id[0]);
    } else
        return false;
    return true;
}

/* ---- The walk ---- */

typedef struct walk {
    tn_rng rng;
    tn_round *m;
    tn_round *shadow; /* restored from what m had told; NULL: none */
    watcher w;
    int64_t now;
    fault f;
    bool injected;
    uint64_t commits, retries, finishes, shadows;
} walk;

static uint64_t below(walk *k, uint64_t n) { return tn_rng_below(&k->rng, n); }

static void choose_cfg(walk *k) {
    watcher *w = &k->w;
    tn_round_cfg *c = &w->cfg;

    *c = plain();
    c->rounds = 2 + below(k, 5);
    c->min_clients = 1 + (uint32_t)below(k, 4);
    c->start_clients = c->min_clients + (uint32_t)below(k, 4);
    c->clients_per_round = below(k, 2) == 0 ? 0 : c->min_clients + (uint32_t)below(k, 4);
    w->fraction_percent = below(k, 2) == 0 ? 0 : 1 + (int)below(k, 100);
    c->fraction = w->fraction_percent / 100.0;
    w->over_quarters = 4 + (int)below(k, 5);
    c->over_select = w->over_quarters / 4.0;
    c->deadline_ns = (int64_t)(10 + below(k, 50)) * S;
    c->resume_ns = (int64_t)below(k, 9) * S;
    c->wait_timeout_ns = below(k, 4) == 0 ? (int64_t)(200 + below(k, 200)) * S : TN_FOREVER;
    c->notice_ns = 30 * S;
    c->seed = tn_rng_u64(&k->rng);
    w->first = true;
    for (int i = 0; i < CLIENTS; i++)
        w->broke[i] = -1;
}

static bool same_act(const tn_round_act *a, const tn_round_act *b) {
    return a->kind == b->kind && a->round == b->round && a->attempt == b->attempt && a->have == b->have &&
           a->need == b->need && strcmp(a->client, b->client) == 0 && strcmp(a->text, b->text) == 0;
}

/* Takes the actions of m, shows them to the watcher, and holds the shadow's against them. */
static bool take_actions(walk *k) {
    watcher *w = &k->w;
    bool any = false;
    tn_round_act theirs = {.text = "nothing"};
    seen s;

    memset(&s, 0, sizeof(s));
    while (tn_round_action(k->m, &s.act)) {
        const char *const *ids = NULL;

        any = true;
        if (k->shadow != NULL && (!tn_round_action(k->shadow, &theirs) || !same_act(&s.act, &theirs)))
            FAULT("the restored machine says %s %s (%s), not %s %s (%s)", act_name[theirs.kind], theirs.client,
                  theirs.text, act_name[s.act.kind], s.act.client, s.act.text);
        k->commits += s.act.kind == TN_ACT_COMMIT;
        k->retries += s.act.kind == TN_ACT_RETRY;
        k->finishes += s.act.kind == TN_ACT_FINISHED;
        if (s.act.kind == TN_ACT_START)
            s.n = tn_round_cohort(k->m, &ids);
        else if (s.act.kind == TN_ACT_COMMIT)
            s.n = tn_round_reported(k->m, &ids);
        for (size_t i = 0; ids != NULL && i < s.n; i++)
            s.id[i] = ids[i];
        if (!k->injected)
            k->injected = inject(k->f, &s, w);
        if (!s.hidden)
            watch_action(w, &s.act, s.id, s.n);
        memset(&s, 0, sizeof(s));
    }
    if (k->shadow != NULL && tn_round_action(k->shadow, &theirs))
        FAULT("the restored machine says %s too", act_name[theirs.kind]);
    return any;
}

static void step_event(walk *k, tn_round_ev ev) {
    int64_t due_at = tn_round_next_tick(k->m);
    bool acted;

    watch_event(&k->w, &ev, k->now);
    feed(k->m, ev.kind, ev.client, k->now);
    if (k->shadow != NULL)
        feed(k->shadow, ev.kind, ev.client, k->now);
    acted = take_actions(k);
    watch_after(&k->w, k->m, acted, ev.kind == TN_EV_TICK && k->now >= due_at);
}

/* A machine made of what is known at this moment, as after a crash; then all connections are made again.
 * Only when no time has passed since START, or the deadlines would rightly differ; and nobody may have left. */
static void restore_shadow(walk *k) {
    watcher *w = &k->w;
    const char *const *cohort, *const *reported;
    size_t n = tn_round_cohort(k->m, &cohort), r = tn_round_reported(k->m, &reported);
    tn_err err = TN_ERR_INIT;

    if (w->state != TN_TRAINING || w->deadline != k->now + w->cfg.deadline_ns || n != w->chosen ||
        count(w->barred) != 0) /* who was refused in an attempt before is forgotten in a crash, and asked again */
        return;
    tn_round_free(k->shadow);
    k->shadow = machine(&w->cfg, w->committed, k->now);
    ck_assert_msg(tn_round_restore(k->shadow, w->committed + 1, w->attempt, cohort, n, reported, r, k->now,
                                   &err) == TN_OK,
                  "%s", err.msg);
    for (int c = 0; c < CLIENTS; c++) {
        bool broken = w->waited[c] && !w->here[c];

        if (w->here[c] || broken)
            feed(k->shadow, TN_EV_JOIN, name_of[c], k->now);
        if (broken)
            feed(k->shadow, TN_EV_BREAK, name_of[c], k->now);
    }
    if (w->stopping)
        feed(k->shadow, TN_EV_STOP, NULL, k->now);
    k->shadows++;
}

static void pass_time(walk *k) {
    int64_t tick = tn_round_next_tick(k->m);

    switch (below(k, 12)) {
    case 0:
        k->now += (int64_t)below(k, 3) * S;
        break;
    case 1:
        if (tick != TN_FOREVER && tick > k->now)
            k->now = tick;
        break;
    case 2:
        k->now += below(k, 8) == 0 ? 100 * S : 1;
        break;
    default:
        break; /* many events at one moment */
    }
}

static void step(walk *k) {
    static const tn_round_ev_kind kinds[] = {TN_EV_JOIN,   TN_EV_JOIN,   TN_EV_JOIN,    TN_EV_BREAK,
                                             TN_EV_LEAVE,  TN_EV_UPDATE, TN_EV_UPDATE,  TN_EV_UPDATE,
                                             TN_EV_UPDATE, TN_EV_REFUSED, TN_EV_TICK,   TN_EV_TICK,
                                             TN_EV_TICK,   TN_EV_COMMITTED};
    tn_round_ev ev = {.kind = kinds[below(k, sizeof(kinds) / sizeof(kinds[0]))]};
    int64_t before = k->now;
    int c = (int)below(k, CLIENTS);

    pass_time(k);
    if (k->now != before)
        ev.kind = TN_EV_TICK;
    if (below(k, 500) == 0)
        ev.kind = TN_EV_STOP;
    if (k->now == before && below(k, 20) == 0)
        restore_shadow(k);
    if (ev.kind <= TN_EV_REFUSED)
        ev.client = name_of[c];
    step_event(k, ev);
    watch_may(&k->w, k->m, c, k->w.committed + below(k, 3), k->w.attempt + (uint32_t)(below(k, 4) == 0));
}

/* Steps until something is wrong, or so many were gone. */
static void run_walk(walk *k, uint64_t seed, fault f, int steps) {
    memset(k, 0, sizeof(*k));
    k->rng = tn_rng_seed(seed);
    k->f = f;
    choose_cfg(k);
    k->m = machine(&k->w.cfg, 0, 0);
    take_actions(k);
    for (int i = 0; i < steps && k->w.fault[0] == '\0'; i++)
        step(k);
    tn_round_free(k->m);
    tn_round_free(k->shadow);
}

START_TEST(random_walks) {
    uint64_t commits = 0, retries = 0, finishes = 0, shadows = 0;
    walk k;

    for (uint64_t seed = 1; seed <= 400; seed++) {
        run_walk(&k, seed, SOUND, 400);
        ck_assert_msg(k.w.fault[0] == '\0', "seed %" PRIu64 ": %s", seed, k.w.fault);
        commits += k.commits;
        retries += k.retries;
        finishes += k.finishes;
        shadows += k.shadows;
    }
    /* The walks went everywhere, or they would show little. */
    ck_assert_uint_gt(commits, 400);
    ck_assert_uint_gt(retries, 100);
    ck_assert_uint_gt(finishes, 100);
    ck_assert_uint_gt(shadows, 400);
}
END_TEST

START_TEST(the_watcher_sees_every_fault) {
    for (fault f = SOUND + 1; f < FAULTS; f++) {
        int occasions = 0;
        walk k;

        for (uint64_t seed = 1; seed <= 40; seed++) {
            run_walk(&k, seed, f, 400);
            if (!k.injected)
                continue;
            occasions++;
            ck_assert_msg(k.w.fault[0] != '\0', "fault %d went unseen with seed %" PRIu64, (int)f, seed);
        }
        ck_assert_msg(occasions >= 5, "fault %d had %d occasions", (int)f, occasions);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("fed_round");
    TCase *examples = tcase_create("examples"), *walks = tcase_create("walks");
    SRunner *r = srunner_create(s);
    int failed;

    suite_add_tcase(s, examples);
    tcase_set_timeout(examples, 60);
    tcase_add_test(examples, a_run);
    tcase_add_test(examples, start_needs_more_than_going_on);
    tcase_add_test(examples, notices_and_the_wait_timeout);
    tcase_add_test(examples, broken_members);
    tcase_add_test(examples, an_update_that_outlived_its_connection);
    tcase_add_test(examples, the_deadline_closes_with_those_who_came);
    tcase_add_test(examples, too_few_at_the_deadline);
    tcase_add_test(examples, refused_updates);
    tcase_add_test(examples, refused_clients_wait_for_the_next_round);
    tcase_add_test(examples, over_selection);
    tcase_add_test(examples, stopping);
    tcase_add_test(examples, a_commit_that_fails);
    tcase_add_test(examples, all_rounds_committed_before);
    tcase_add_test(examples, restored);
    tcase_add_test(examples, settings_refused);
    tcase_add_test(examples, clients_refused);
    tcase_add_test(examples, the_choice_is_uniform_and_seeded);
    tcase_add_test(examples, many_clients);
    suite_add_tcase(s, walks);
    tcase_set_timeout(walks, 120);
    tcase_add_test(walks, random_walks);
    tcase_add_test(walks, the_watcher_sees_every_fault);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

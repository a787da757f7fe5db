/* Groups that lose ranks and go on: each test starts dist_shrink once a rank. TN_TEST_REPEAT (3) is how often
 * each rank is killed somewhere in a loop of sums; the moment differs each time. */
#include "tests/sim/dist_world.h"

#define WORLD 4

static void set_time(const char *key) {
    int64_t now = tn_now();
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(store.set(store.arg, key, &now, sizeof(now), &err) == TN_OK, "%s", err.msg);
}

static int repeats(void) {
    const char *text = getenv("TN_TEST_REPEAT");

    return text != NULL ? (int)strtol(text, NULL, 10) : SANITISED ? 1 : 3;
}

static void kill_rank(world *w, int rank) {
    kill(w->pid[rank], SIGKILL);
}

/* `_i` counts over victims and repeats. */
START_TEST(killed_in_a_loop) {
    static const char *const transports[] = {"transport=tcp", "transport=ipc"};
    int victim = _i % WORLD;
    char text[32];
    world w;

    snprintf(text, sizeof(text), "victim=%d", victim);
    w = begin(WORLD, -1, "mode=killed", text, transports[_i / WORLD % 2], NULL);
    await_gate("ready", WORLD);
    pause_for((3 + _i * 37 % 90) * TN_MS); /* anywhere in a sum of some 20 ms */
    set_time("cut");
    kill_rank(&w, victim);
    end(&w, victim);
}
END_TEST

START_TEST(killed_while_shrinking) {
    int victim = _i % 4;
    char text[32], which[32];
    world w;

    snprintf(text, sizeof(text), "victim=%d", victim);
    snprintf(which, sizeof(which), "which=%d", _i * 17 % 100); /* within 10 ms */
    w = begin(5, -1, "mode=second_death", text, which, NULL);
    await_gate("ready", 5);
    pause_for(20 * TN_MS);
    kill_rank(&w, victim);
    ck_assert(WIFSIGNALED(status_of(w.pid[victim], tn_deadline_after(tn_now(), PATIENCE))));
    w.pid[victim] = 0;
    end(&w, victim + 1);
}
END_TEST

/* 0: ranks 2 and 3 die, 0 and 1 go on. 1: 0 and 1 die, 2 and 3 may not. 2: they may. */
START_TEST(half) {
    int victim = _i == 0 ? 2 : 0;
    int64_t deadline = tn_deadline_after(tn_now(), PATIENCE);
    world w =
        begin(WORLD, -1, "mode=half", _i == 0 ? "victim=2" : "victim=0", _i == 2 ? "which=1" : "which=0", NULL);
    int r;

    await_gate("ready", WORLD);
    for (r = victim; r < victim + 2; r++)
        kill_rank(&w, r);
    set_time("cut");
    for (r = victim; r < victim + 2; r++) {
        ck_assert(WIFSIGNALED(status_of(w.pid[r], deadline)));
        w.pid[r] = 0;
    }
    end(&w, -1);
}
END_TEST

START_TEST(nobody_is_gone) {
    static const int sizes[] = {1, 2, 4, 7};
    world w = begin(sizes[_i], -1, "mode=whole", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(too_late) {
    world w = begin(WORLD, -1, "mode=late", "victim=1", NULL);
    static const int rest[] = {0, 2, 3};
    size_t i;

    await_stopped(w.pid[1]);
    for (i = 0; i < 3; i++) {
        char key[40];
        tn_err err = TN_ERR_INIT;
        uint8_t *p;
        size_t n;

        snprintf(key, sizeof(key), "gate/over/%d", rest[i]);
        ck_assert_msg(store.get(store.arg, key, PATIENCE, &p, &n, &err) == TN_OK, "%s", err.msg);
        free(p);
    }
    kill(w.pid[1], SIGCONT);
    end(&w, -1);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_shrink");
    TCase *t = tcase_create("shrink");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, killed_in_a_loop, 0, WORLD * repeats());
    tcase_add_loop_test(t, killed_while_shrinking, 0, 4 * repeats());
    tcase_add_loop_test(t, half, 0, 3);
    tcase_add_loop_test(t, nobody_is_gone, 0, 4);
    tcase_add_test(t, too_late);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r;
    int failed;

    program_name = "dist_shrink";
    r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}

/* Process groups among real processes where something goes wrong: each test starts dist_fault once a rank. */
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/sim/dist_world.h"

#define WORLD 4

/* Each rank in turn, before the first operation of each kind. */
START_TEST(killed_before_first_use) {
    char victim[32], which[32];
    int v;

    snprintf(which, sizeof(which), "which=%d", _i);
    for (v = 0; v < WORLD; v++) {
        world w;
        int64_t deadline = tn_deadline_after(tn_now(), PATIENCE);

        fresh_store();
        snprintf(victim, sizeof(victim), "victim=%d", v);
        w = begin(WORLD, -1, "mode=killed_first", victim, which, NULL);
        ck_assert(WIFSIGNALED(status_of(w.pid[v], deadline)));
        put("killed");
        w.pid[v] = 0;
        end(&w, -1);
    }
}
END_TEST

START_TEST(killed_midway) {
    char victim[32];
    world w;

    snprintf(victim, sizeof(victim), "victim=%d", _i);
    w = begin(WORLD, -1, "mode=killed_midway", victim, NULL);
    end(&w, _i);
}
END_TEST

START_TEST(killed_midway_ipc) {
    char victim[32];
    world w;

    snprintf(victim, sizeof(victim), "victim=%d", _i);
    w = begin(3, -1, "mode=killed_midway", "transport=ipc", victim, NULL);
    end(&w, _i);
}
END_TEST

START_TEST(absent_is_named) {
    char victim[32], which[32];
    int v;

    snprintf(which, sizeof(which), "which=%d", _i);
    for (v = 0; v < WORLD; v++) {
        world w;

        fresh_store();
        snprintf(victim, sizeof(victim), "victim=%d", v);
        w = begin(WORLD, -1, "mode=absent", victim, which, NULL);
        end(&w, -1);
    }
}
END_TEST

START_TEST(missing_is_named) {
    char victim[32];
    world w;

    snprintf(victim, sizeof(victim), "victim=%d", _i);
    w = begin(3, _i, "mode=missing", victim, NULL);
    end(&w, -1);
}
END_TEST

START_TEST(mismatch_is_named) {
    char which[32];
    world w;

    snprintf(which, sizeof(which), "which=%d", _i);
    w = begin(3, -1, "mode=mismatch", which, NULL);
    end(&w, -1);
}
END_TEST

START_TEST(abort_is_told) {
    char victim[32];
    world w;

    snprintf(victim, sizeof(victim), "victim=%d", _i);
    w = begin(3, -1, "mode=abort", victim, NULL);
    end(&w, -1);
}
END_TEST

START_TEST(who_differs_is_told) {
    char which[32];
    world w;

    snprintf(which, sizeof(which), "which=%d", _i);
    w = begin(WORLD, -1, "mode=differs", "check=1", which, NULL);
    end(&w, -1);
}
END_TEST

START_TEST(checking_alone_is_told) {
    world w = begin(3, -1, "mode=checks_alone", "victim=1", NULL);

    end(&w, -1);
}
END_TEST

/* ---- Stopped and slow ---- */

START_TEST(stopped_and_let_go) {
    char victim[32];
    world w;

    snprintf(victim, sizeof(victim), "victim=%d", _i);
    w = begin(WORLD, -1, "mode=stopped", victim, NULL);
    await_stopped(w.pid[_i]);
    pause_for(1500 * TN_MS);
    kill(w.pid[_i], SIGCONT);
    end(&w, -1);
}
END_TEST

START_TEST(stopped_too_long_is_named) {
    char which[32];
    world w;

    snprintf(which, sizeof(which), "which=%d", _i);
    w = begin(WORLD, -1, "mode=stopped_too_long", "victim=2", which, NULL);
    await_stopped(w.pid[2]);
    put("stopped");
    end_stopped(&w, 2);
}
END_TEST

START_TEST(slow_is_not_dead) {
    world w = begin(WORLD, -1, "mode=slow", "victim=1", NULL);

    end(&w, -1);
}
END_TEST

/* ---- Every collective, with up to 16 ranks ---- */

#define MANY (SANITISED ? 5 : 16)
#define EACH 11 /* as in dist_rank.c */

START_TEST(each_slow) {
    world w;

    program_name = "dist_rank";
    w = begin(_i == 0 ? MANY : 7, -1, "mode=each_slow", NULL);
    end(&w, -1);
}
END_TEST

START_TEST(each_stopped) {
    world w;
    int k;

    program_name = "dist_rank";
    w = begin(MANY, -1, "mode=each_stopped", NULL);
    for (k = 0; k < EACH; k++) {
        await_stopped(w.pid[k % MANY]);
        pause_for(200 * TN_MS);
        kill(w.pid[k % MANY], SIGCONT);
    }
    end(&w, -1);
}
END_TEST

START_TEST(each_killed) {
    char victim[32], which[32];
    int v = (_i * 7 + 3) % MANY;
    world w;

    program_name = "dist_rank";
    snprintf(victim, sizeof(victim), "victim=%d", v);
    snprintf(which, sizeof(which), "which=%d", _i);
    w = begin(MANY, -1, "mode=each_killed", victim, which, NULL);
    end(&w, v);
}
END_TEST

/* ---- What is left ---- */

/* Ranks put their sockets into a folder of this test's own, which must be empty in the end. */
static void own_folder(char path[100]) {
    snprintf(path, 100, "%s/sockets", dir);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(setenv("TMPDIR", path, 1), 0);
}

START_TEST(nothing_is_left) {
    static const char *const transports[] = {"transport=tcp", "transport=ipc", "transport=tls"};
    char path[100];
    world w;

    own_folder(path);
    make_certificates();
    w = begin(3, -1, "mode=left", transports[_i], certs[0], certs[1], certs[2], NULL);
    end(&w, -1);
    ck_assert_msg(rmdir(path) == 0, "files are left in %s", path);
}
END_TEST

START_TEST(nothing_is_left_of_the_dead) {
    char victim[32], path[100];
    world w;

    own_folder(path);
    snprintf(victim, sizeof(victim), "victim=%d", _i);
    w = begin(3, -1, "mode=killed_midway", "transport=ipc", victim, NULL);
    end(&w, _i);
    ck_assert_msg(rmdir(path) == 0, "files are left in %s", path);
}
END_TEST

/* All were killed at once: the next group that uses the folder cleans up. */
START_TEST(old_sockets_go) {
    char path[100], old[140], young[140], other[140];
    struct timespec then[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    world w;
    int i;

    own_folder(path);
    snprintf(old, sizeof(old), "%s/tn-0123456789abcdef.sock", path);
    snprintf(young, sizeof(young), "%s/tn-0123456789abcdee.sock", path);
    snprintf(other, sizeof(other), "%s/tn-somebody-elses.file.t", path);
    for (i = 0; i < 2; i++) {
        struct sockaddr_un at = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        snprintf(at.sun_path, sizeof(at.sun_path), "%.107s", i == 0 ? old : young);
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
        close(fd); /* what a killed process leaves */
    }
    close(open(other, O_CREAT | O_WRONLY, 0600));
    ck_assert_int_eq(utimensat(AT_FDCWD, old, then, 0), 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, other, then, 0), 0);
    w = begin(2, -1, "mode=slow", "transport=ipc", "victim=1", NULL);
    end(&w, -1);
    ck_assert_int_ne(access(old, F_OK), 0);
    ck_assert_int_eq(unlink(young), 0);
    ck_assert_int_eq(unlink(other), 0);
    ck_assert_msg(rmdir(path) == 0, "files are left in %s", path);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist_fault");
    TCase *f = tcase_create("failures");

    tcase_add_checked_fixture(f, setup, teardown);
    tcase_set_timeout(f, 300);
    tcase_add_loop_test(f, killed_before_first_use, 0, 6);
    tcase_add_loop_test(f, killed_midway, 0, WORLD);
    tcase_add_loop_test(f, killed_midway_ipc, 0, 3);
    tcase_add_loop_test(f, absent_is_named, 0, 2);
    tcase_add_loop_test(f, missing_is_named, 0, 3);
    tcase_add_loop_test(f, mismatch_is_named, 0, 6);
    tcase_add_loop_test(f, abort_is_told, 0, 3);
    tcase_add_loop_test(f, who_differs_is_told, 0, 8);
    tcase_add_test(f, checking_alone_is_told);
    tcase_add_loop_test(f, stopped_and_let_go, 0, 2);
    tcase_add_loop_test(f, stopped_too_long_is_named, 0, 3);
    tcase_add_test(f, slow_is_not_dead);
    tcase_add_loop_test(f, each_slow, 0, 2);
    tcase_add_test(f, each_stopped);
    tcase_add_loop_test(f, each_killed, 0, EACH);
    tcase_add_loop_test(f, nothing_is_left, 0, 3);
    tcase_add_loop_test(f, nothing_is_left_of_the_dead, 0, 3);
    tcase_add_test(f, old_sockets_go);
    suite_add_tcase(s, f);
    return s;
}

int main(void) {
    SRunner *r;
    int failed;

    program_name = "dist_fault";
    r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}

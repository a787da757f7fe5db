/* Process groups across hosts. A host is a network namespace that the test makes itself: each rank gets one,
 * all are joined by a bridge in one more, and pulling a cable is setting the bridge's end of it down. Needs
 * root and iproute2; without them the one test that is left says why. */
#include <dirent.h>

#include "tests/sim/dist_world.h"

#define HOSTS 4

static char names[HOSTS + 1][24]; /* of the namespaces; the last one holds the bridge */

/* One `ip` command, its words separated by single spaces. */
static int ip(const char *fmt, ...) TN_PRINTF(1, 2);
static int ip(const char *fmt, ...) {
    char text[200], *argv[24] = {(char *)(uintptr_t)"ip"}, *word, *rest = NULL;
    int n = 1, status = -1;
    va_list ap;
    pid_t pid;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (word = strtok_r(text, " ", &rest); word != NULL && n < 23; word = strtok_r(NULL, " ", &rest))
        argv[n++] = word;
    argv[n] = NULL;
    pid = fork();
    if (pid == 0) {
        execvp("ip", argv);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

static void remove_hosts(void) {
    int i;

    for (i = 0; i <= HOSTS; i++)
        (void)ip("netns del %s", names[i]);
}

/* Hosts of a run that was killed: its process is gone. */
static void remove_old_hosts(void) {
    DIR *d = opendir("/run/netns");
    const struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        long pid = strncmp(e->d_name, "tn-", 3) == 0 ? strtol(e->d_name + 3, NULL, 10) : 0;

        if (pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
            (void)ip("netns del %s", e->d_name);
    }
    if (d != NULL)
        closedir(d);
}

/* 0 when all is there. */
static int make_hosts(void) {
    const char *hub = names[HOSTS];
    int i, bad = 0;

    remove_old_hosts();
    for (i = 0; i <= HOSTS; i++) {
        snprintf(names[i], sizeof(names[i]), "tn-%d-%c", (int)getpid(), i < HOSTS ? '0' + i : 'h');
        bad |= ip("netns add %s", names[i]);
    }
    bad |= ip("-n %s link add br0 type bridge", hub);
    bad |= ip("-n %s link set br0 up", hub);
    for (i = 0; i < HOSTS && bad == 0; i++) {
        bad |= ip("-n %s link add cable%d type veth peer name eth0 netns %s", hub, i, names[i]);
        bad |= ip("-n %s link set cable%d master br0", hub, i);
        bad |= ip("-n %s link set cable%d up", hub, i);
        bad |= ip("-n %s link set lo up", names[i]);
        bad |= ip("-n %s link set eth0 up", names[i]);
        bad |= ip("-n %s addr add 10.97.0.%d/24 dev eth0", names[i], i + 1);
        bad |= ip("-n %s addr add fd97::%d/64 dev eth0 nodad", names[i], i + 1);
    }
    return bad;
}

static void cable(int host, bool in) {
    ck_assert_int_eq(ip("-n %s link set cable%d %s", names[HOSTS], host, in ? "up" : "down"), 0);
}

/* A test that failed may have left a cable out. */
static void setup_net(void) {
    int i;

    for (i = 0; i < HOSTS; i++)
        cable(i, true);
    setup();
}

static const char *host_v4(int rank, const char **address) {
    static const char *const at[HOSTS] = {"10.97.0.1", "10.97.0.2", "10.97.0.3", "10.97.0.4"};

    *address = at[rank];
    return names[rank];
}

static const char *host_v6(int rank, const char **address) {
    static const char *const at[HOSTS] = {"fd97::1", "fd97::2", "fd97::3", "fd97::4"};

    *address = at[rank];
    return names[rank];
}

static void set_cut_time(void) {
    int64_t now = tn_now();
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(store.set(store.arg, "cut", &now, sizeof(now), &err) == TN_OK, "%s", err.msg);
}

/* ---- Results ---- */

START_TEST(grid) {
    world w;

    program_name = "dist_rank";
    host_of = _i == 0 ? host_v4 : host_v6;
    w = begin(3, -1, "mode=hosts", NULL);
    end(&w, -1);
}
END_TEST

START_TEST(grid_tls) {
    static const char *const hosts[] = {"10.97.0.1", "10.97.0.2", "10.97.0.3", "fd97::1", "fd97::2", "fd97::3"};
    world w;

    program_name = "dist_rank";
    host_of = _i == 0 ? host_v4 : host_v6;
    make_certificates_for(hosts, 6);
    w = begin(3, -1, "mode=hosts", "transport=tls", certs[0], certs[1], certs[2], NULL);
    end(&w, -1);
}
END_TEST

/* ---- Failures ---- */

START_TEST(silent_host) {
    char which[32];
    world w;

    program_name = "dist_fault";
    host_of = host_v4;
    snprintf(which, sizeof(which), "which=%d", _i);
    w = begin(HOSTS, -1, "mode=silent", "victim=1", which, NULL);
    await_gate("ready", HOSTS);
    pause_for(300 * TN_MS);
    set_cut_time();
    cable(1, false);
    end(&w, -1);
    cable(1, true);
}
END_TEST

/* For longer than it takes to notice a silent host. */
START_TEST(stopped_is_not_silent) {
    world w;

    program_name = "dist_fault";
    host_of = host_v4;
    w = begin(HOSTS, -1, "mode=stopped", "victim=2", NULL);
    await_stopped(w.pid[2]);
    pause_for(8 * TN_SECOND);
    kill(w.pid[2], SIGCONT);
    end(&w, -1);
}
END_TEST

/* A cable that is out for a moment costs nobody anything. */
START_TEST(short_cut) {
    world w;

    program_name = "dist_fault";
    host_of = host_v4;
    w = begin(HOSTS, -1, "mode=stopped", "victim=2", NULL);
    await_stopped(w.pid[2]);
    pause_for(1 * TN_SECOND); /* the streams that watch are open */
    cable(2, false);
    pause_for(1500 * TN_MS);
    cable(2, true);
    pause_for(1 * TN_SECOND);
    kill(w.pid[2], SIGCONT);
    end(&w, -1);
}
END_TEST

/* Two of four hosts are cut off: one group at most goes on. */
START_TEST(split) {
    world w;

    program_name = "dist_shrink";
    host_of = host_v4;
    w = begin(HOSTS, -1, "mode=split", NULL);
    await_gate("ready", HOSTS);
    cable(2, false);
    cable(3, false);
    end(&w, -1);
    cable(2, true);
    cable(3, true);
}
END_TEST

START_TEST(skipped) {
    int out = ip("netns list");

    ck_assert_msg(geteuid() != 0 || out != 0,
                  "namespaces could not be made although root asked with iproute2: see above");
    fprintf(stderr, "test_dist_net: skipped: %s\n", geteuid() != 0 ? "not root" : "no `ip` (package iproute2)");
}
END_TEST

static Suite *suite(bool ready) {
    Suite *s = suite_create("dist_net");
    TCase *t = tcase_create("hosts");

    suite_add_tcase(s, t);
    tcase_set_timeout(t, 300);
    if (!ready) {
        tcase_add_test(t, skipped);
        return s;
    }
    tcase_add_checked_fixture(t, setup_net, teardown);
    tcase_add_loop_test(t, grid, 0, 2);
    tcase_add_loop_test(t, grid_tls, 0, 2);
    tcase_add_loop_test(t, silent_host, 0, 5);
    tcase_add_test(t, stopped_is_not_silent);
    tcase_add_test(t, short_cut);
    tcase_add_test(t, split);
    return s;
}

int main(void) {
    bool ready = geteuid() == 0 && make_hosts() == 0;
    SRunner *r = srunner_create(suite(ready));
    int failed;

    srunner_run_all(r, CK_ENV);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    if (geteuid() == 0)
        remove_hosts();
    return failed != 0;
}

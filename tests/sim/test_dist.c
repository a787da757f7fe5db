/* Process groups among real processes: each test starts dist_rank, which lies beside this program, once a
 * rank. */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dist/dist.h"

#define MAX_RANKS 8
#define PATIENCE (120 * TN_SECOND) /* for one world; sanitisers are slow */

static char dir[64], program[4096];
static tn_store store;
static char store_arg[160], certs[3][120];

static void setup(void) {
    tn_err err = TN_ERR_INIT;
    char path[100];

    snprintf(dir, sizeof(dir), "/tmp/tn-test-dist-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/store", dir);
    snprintf(store_arg, sizeof(store_arg), "store=file:%s", path);
    ck_assert_msg(tn_store_file(&store, path, "test", &err) == TN_OK, "%s", err.msg);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void teardown(void) {
    tn_store_release(&store);
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- Worlds ---- */

typedef struct world {
    int size;
    pid_t pid[MAX_RANKS];
} world;

static void locate_program(void) {
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 20);
    char *slash;

    ck_assert_int_gt((int)n, 0);
    program[n] = '\0';
    slash = strrchr(program, '/');
    snprintf(slash + 1, 16, "dist_rank");
}

static pid_t start(int rank, int size, char *const *options) {
    char r[32], s[32], *argv[24] = {program, r, s, store_arg};
    int n = 4;
    pid_t pid;

    snprintf(r, sizeof(r), "rank=%d", rank);
    snprintf(s, sizeof(s), "size=%d", size);
    while (*options != NULL && n < 23)
        argv[n++] = *options++;
    pid = fork();
    if (pid == 0) {
        execv(program, argv);
        fprintf(stderr, "cannot start %s: %s\n", program, strerror(errno));
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

/* Starts all ranks but `without`. Options end with NULL. */
static world begin(int size, int without, ...) {
    world w = {.size = size};
    char *options[20];
    va_list ap;
    int n = 0, r;

    locate_program();
    va_start(ap, without);
    while (n < 19 && (options[n] = va_arg(ap, char *)) != NULL)
        n++;
    va_end(ap);
    options[n] = NULL;
    for (r = 0; r < size; r++)
        w.pid[r] = r == without ? 0 : start(r, size, options);
    return w;
}

static int status_of(pid_t pid, int64_t deadline) {
    int status;

    for (;;) {
        struct timespec ts = {.tv_nsec = 5 * TN_MS};
        pid_t got = waitpid(pid, &status, WNOHANG);

        ck_assert(got >= 0 || errno == EINTR);
        if (got == pid)
            return status;
        if (tn_now() >= deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        nanosleep(&ts, NULL);
    }
}

/* All ranks end well, but `killed` (or -1), who died by SIGKILL. */
static void end(world *w, int killed) {
    int64_t deadline = tn_deadline_after(tn_now(), PATIENCE);
    int status[MAX_RANKS], r;

    for (r = 0; r < w->size; r++)
        status[r] = w->pid[r] != 0 ? status_of(w->pid[r], deadline) : 0;
    for (r = 0; r < w->size; r++) {
        ck_assert_msg(status[r] != -1, "rank %d of %d hangs", r, w->size);
        if (r == killed)
            ck_assert_msg(WIFSIGNALED(status[r]) && WTERMSIG(status[r]) == SIGKILL, "rank %d was not killed",
                          r);
        else
            ck_assert_msg(WIFEXITED(status[r]) && WEXITSTATUS(status[r]) == 0,
                          "rank %d of %d ended with status %x: see its message above", r, w->size,
                          (unsigned)status[r]);
    }
}

/* A new file store, for tests with several worlds. */
static void fresh_store(void) {
    teardown();
    setup();
}

static void put(const char *key) {
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(store.set(store.arg, key, "1", 1, &err) == TN_OK, "%s", err.msg);
}

/* ---- Results ---- */

static const int sizes[] = {1, 2, 3, 5, 8};
#define SIZES ((int)(sizeof(sizes) / sizeof(sizes[0])))

START_TEST(grid_tcp) {
    world w = begin(sizes[_i], -1, "mode=grid", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_ipc) {
    world w = begin(sizes[_i], -1, "mode=grid", "transport=ipc", NULL);

    end(&w, -1);
}
END_TEST

/* Segments of a few elements, so that small tensors cross every edge; and the one-step algorithm throughout. */
START_TEST(grid_segments) {
    static const char *const segments[] = {"segment=16", "segment=80", "segment=4096"};
    world w = begin(3, -1, "mode=grid", segments[_i], "small=1", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_tree) {
    world w = begin(_i, -1, "mode=grid", "segment=64", "small=1", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(grid_one_step) {
    world w = begin(3, -1, "mode=grid", "small=18446744073709551615", NULL);

    end(&w, -1);
}
END_TEST

static void make_certificates(void) {
    static const char *const hosts[] = {"localhost", "127.0.0.1"};
    tn_cert_request req = {.name = "rank", .hosts = hosts, .nhosts = 2, .server = true, .days = 2};
    tn_err err = TN_ERR_INIT;
    char cert[100], key[100];

    snprintf(cert, sizeof(cert), "%s/rank.pem", dir);
    snprintf(key, sizeof(key), "%s/rank.key", dir);
    ck_assert_msg(tn_cert_init(dir, "test-ca", 2, &err) == TN_OK, "%s", err.msg);
    ck_assert_msg(tn_cert_issue(dir, &req, cert, key, NULL, &err) == TN_OK, "%s", err.msg);
    snprintf(certs[0], sizeof(certs[0]), "cert=%s", cert);
    snprintf(certs[1], sizeof(certs[1]), "key=%s", key);
    snprintf(certs[2], sizeof(certs[2]), "ca=%s/ca.pem", dir);
}

START_TEST(grid_tls) {
    world w;

    make_certificates();
    w = begin(3, -1, "mode=grid", "transport=tls", certs[0], certs[1], certs[2], NULL);
    end(&w, -1);
}
END_TEST

START_TEST(grid_tcp_store) {
    tn_store server;
    tn_err err = TN_ERR_INIT;
    world w;

    /* NNG is touched here, in a child of Check, and the ranks are exec'd: no state of it is inherited. */
    ck_assert_msg(tn_store_tcp(&server, "127.0.0.1", 0, true, 20 * TN_SECOND, &err) == TN_OK, "%s", err.msg);
    snprintf(store_arg, sizeof(store_arg), "store=tcp:%d", tn_store_tcp_port(&server));
    w = begin(3, -1, "mode=grid", NULL);
    end(&w, -1);
    tn_store_release(&server);
}
END_TEST

START_TEST(p2p_tcp) {
    world w = begin(sizes[_i], -1, "mode=p2p", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(p2p_ipc) {
    world w = begin(3, -1, "mode=p2p", "transport=ipc", NULL);

    end(&w, -1);
}
END_TEST

START_TEST(p2p_tls) {
    world w;

    make_certificates();
    w = begin(3, -1, "mode=p2p", "transport=tls", certs[0], certs[1], certs[2], NULL);
    end(&w, -1);
}
END_TEST

START_TEST(leaving_loses_nothing) {
    world w = begin(_i, -1, "mode=leave", NULL);

    end(&w, -1);
}
END_TEST

/* ---- Failures ---- */

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

/* ---- Strangers ---- */

/* Connects to a rank, says something, and perhaps stays. Returns the socket or -1. */
static int stranger(const char *url, const void *bytes, size_t n, bool stay) {
    const char *colon = strrchr(url, ':');
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_nonnull(colon);
    at.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    if (n > 0)
        ck_assert_int_eq((int)send(fd, bytes, n, MSG_NOSIGNAL), (int)n);
    if (stay)
        return fd;
    close(fd);
    return -1;
}

START_TEST(strangers_are_turned_away) {
    uint8_t junk[200], hello[48] = "TN01\x01\x01";
    world w = begin(3, -1, "mode=strangers", NULL);
    int fds[16], n = 0, r, i;

    for (i = 0; i < (int)sizeof(junk); i++)
        junk[i] = (uint8_t)(i * 37 + 1);
    hello[8] = 1;   /* "I am rank 1" ... */
    hello[24] = 16; /* ... with a secret of 16 bytes, all wrong */
    for (r = 0; r < 3; r++) {
        tn_err err = TN_ERR_INIT;
        uint8_t *p;
        size_t len;
        char key[60], url[100];

        snprintf(key, sizeof(key), "tn/world/1/address/%d", r);
        ck_assert_msg(store.get(store.arg, key, 20 * TN_SECOND, &p, &len, &err) == TN_OK, "%s", err.msg);
        snprintf(url, sizeof(url), "%.*s", (int)len, (char *)p);
        free(p);
        stranger(url, NULL, 0, false);
        stranger(url, junk, sizeof(junk), false);
        stranger(url, hello, 20, false);
        stranger(url, hello, sizeof(hello), false);
        fds[n++] = stranger(url, NULL, 0, true);
        fds[n++] = stranger(url, hello, 33, true);
        fds[n++] = stranger(url, hello, sizeof(hello), true);
        fds[n++] = stranger(url, "GET / HTTP/1.1\r\n\r\n", 18, true);
    }
    put("strangers were here");
    end(&w, -1);
    while (n > 0)
        close(fds[--n]);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("dist");
    TCase *t = tcase_create("results"), *f = tcase_create("failures");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, grid_tcp, 0, SIZES);
    tcase_add_loop_test(t, grid_ipc, 0, SIZES);
    tcase_add_loop_test(t, grid_segments, 0, 3);
    tcase_add_loop_test(t, grid_tree, 5, 9);
    tcase_add_test(t, grid_one_step);
    tcase_add_test(t, grid_tls);
    tcase_add_test(t, grid_tcp_store);
    tcase_add_loop_test(t, p2p_tcp, 0, SIZES);
    tcase_add_test(t, p2p_ipc);
    tcase_add_test(t, p2p_tls);
    tcase_add_loop_test(t, leaving_loses_nothing, 2, 6);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(f, setup, teardown);
    tcase_set_timeout(f, 300);
    tcase_add_loop_test(f, killed_before_first_use, 0, 6);
    tcase_add_loop_test(f, killed_midway, 0, WORLD);
    tcase_add_loop_test(f, killed_midway_ipc, 0, 3);
    tcase_add_loop_test(f, absent_is_named, 0, 2);
    tcase_add_loop_test(f, missing_is_named, 0, 3);
    tcase_add_loop_test(f, mismatch_is_named, 0, 6);
    tcase_add_loop_test(f, abort_is_told, 0, 3);
    tcase_add_test(f, strangers_are_turned_away);
    suite_add_tcase(s, f);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    int failed;

    srunner_run_all(r, CK_ENV);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}

/* Worlds of real processes for test_dist*.c: a folder with a file store for each test, ranks that are started
 * from the program beside this one, and their ends. */
#ifndef TN_TESTS_DIST_WORLD_H
#define TN_TESTS_DIST_WORLD_H

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dist/dist.h"
#include "tests/sim/sanitised.h"

#define MAX_RANKS 16
#define PATIENCE (120 * TN_SECOND) /* for one world; sanitisers are slow */

static const char *program_name = "dist_rank"; /* what the ranks run */
static char dir[64], program[4096];
static tn_store store;
static char store_arg[160], certs[3][120];

static inline void setup(void) {
    tn_err err = TN_ERR_INIT;
    char path[100];

    snprintf(dir, sizeof(dir), "/tmp/tn-test-dist-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/store", dir);
    snprintf(store_arg, sizeof(store_arg), "store=file:%s", path);
    ck_assert_msg(tn_store_file(&store, path, "test", &err) == TN_OK, "%s", err.msg);
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void teardown(void) {
    tn_store_release(&store);
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- Worlds ---- */

typedef struct world {
    int size;
    pid_t pid[MAX_RANKS];
} world;

static inline void locate_program(void) {
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 20);
    char *slash;

    ck_assert_int_gt((int)n, 0);
    program[n] = '\0';
    slash = strrchr(program, '/');
    snprintf(slash + 1, 16, "%s", program_name);
}

/* Where rank r runs when the ranks are on hosts of their own: a network namespace, and its address there. */
static const char *(*host_of)(int rank, const char **address);

static inline pid_t start(int rank, int size, char *const *options) {
    char r[32], s[32], host[80], *argv[32];
    const char *address = NULL, *ns = host_of != NULL ? host_of(rank, &address) : NULL;
    int n = 0;
    pid_t pid;

    if (ns != NULL) {
        argv[n++] = (char *)(uintptr_t)"ip";
        argv[n++] = (char *)(uintptr_t)"netns";
        argv[n++] = (char *)(uintptr_t)"exec";
        argv[n++] = (char *)(uintptr_t)ns;
    }
    argv[n++] = program;
    argv[n++] = r;
    argv[n++] = s;
    argv[n++] = store_arg;
    snprintf(r, sizeof(r), "rank=%d", rank);
    snprintf(s, sizeof(s), "size=%d", size);
    if (address != NULL) {
        snprintf(host, sizeof(host), "host=%s", address);
        argv[n++] = host;
    }
    while (*options != NULL && n < 31)
        argv[n++] = *options++;
    argv[n] = NULL;
    pid = fork();
    if (pid == 0) {
        execvp(argv[0], argv); /* `ip netns exec` becomes the rank: one process, one id */
        fprintf(stderr, "cannot start %s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

/* Starts all ranks but `without`. Options end with NULL. */
static inline world begin(int size, int without, ...) {
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

static inline int status_of(pid_t pid, int64_t deadline) {
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

/* All ranks end well, but `killed` (or -1), who died by SIGKILL; `stopped`: he is killed when the others have
 * ended. */
static inline void end_with(world *w, int killed, bool stopped) {
    int64_t deadline = tn_deadline_after(tn_now(), PATIENCE);
    int status[MAX_RANKS], r;

    for (r = 0; r < w->size; r++)
        if (!stopped || r != killed)
            status[r] = w->pid[r] != 0 ? status_of(w->pid[r], deadline) : 0;
    if (stopped) {
        kill(w->pid[killed], SIGKILL);
        status[killed] = status_of(w->pid[killed], deadline);
    }
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

static inline void end(world *w, int killed) { end_with(w, killed, false); }
static inline void end_stopped(world *w, int stopped) { end_with(w, stopped, true); }

/* A new file store, for tests with several worlds. */
static inline void fresh_store(void) {
    teardown();
    setup();
}

static inline void put(const char *key) {
    tn_err err = TN_ERR_INIT;

    ck_assert_msg(store.set(store.arg, key, "1", 1, &err) == TN_OK, "%s", err.msg);
}

/* Until all ranks have come to a gate of that name. */
static inline void await_gate(const char *name, int size) {
    char key[80];
    int r;

    for (r = 0; r < size; r++) {
        tn_err err = TN_ERR_INIT;
        uint8_t *p;
        size_t n;

        snprintf(key, sizeof(key), "gate/%s/%d", name, r);
        ck_assert_msg(store.get(store.arg, key, PATIENCE, &p, &n, &err) == TN_OK, "%s", err.msg);
        free(p);
    }
}

static inline void await_stopped(pid_t pid) {
    int status = 0;

    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert_msg(WIFSTOPPED(status), "a rank ended with status %x instead of stopping", (unsigned)status);
}

static inline void pause_for(int64_t ns) {
    struct timespec ts = {.tv_sec = ns / TN_SECOND, .tv_nsec = ns % TN_SECOND};

    nanosleep(&ts, NULL);
}

/* One certificate that serves all ranks. */
static inline void make_certificates_for(const char *const *hosts, size_t n) {
    tn_cert_request req = {.name = "rank", .hosts = hosts, .nhosts = n, .server = true, .days = 2};
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

static inline void make_certificates(void) {
    static const char *const hosts[] = {"localhost", "127.0.0.1"};

    make_certificates_for(hosts, 2);
}

#endif

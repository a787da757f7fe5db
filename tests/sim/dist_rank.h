/* What the programs that play one rank of a world have in common: options, a store, gates between the ranks,
 * and main's work. test_dist*.c start as many of them as the world has ranks.
 *
 *   dist_rank|dist_fault mode=NAME store=file:PATH|tcp:PORT rank=R size=N [transport=tcp] [host=A] [segment=B]
 *                        [small=B] [timeout=MS] [check=1] [victim=R] [which=CASE] [cert=F key=F ca=F]
 *
 * Exit code 0: everything was as it should be; 1: the reason is on standard error. */
#ifndef TN_TESTS_DIST_RANK_H
#define TN_TESTS_DIST_RANK_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/dist.h"
#include "tests/sim/sanitised.h"

#define MAX_RANKS 16

static struct options {
    const char *mode, *store, *transport, *host;
    int rank, size, victim, which;
    size_t segment, small;
    int64_t timeout;
    bool check;
    tn_tx_opts tls;
} opt = {.transport = "tcp", .timeout = 60 * TN_SECOND, .victim = -1};

static tn_store store;
static tn_pg *g;

static inline void die(const char *fmt, ...) TN_PRINTF(1, 2) __attribute__((noreturn));
static inline void die(const char *fmt, ...) {
    char text[1200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s, %s, rank %d of %d: %s\n", opt.mode, opt.transport, opt.rank, opt.size, text);
    _exit(1);
}

/* What to do instead of dying of an error, where one is to come. */
static void (*when_it_fails)(tn_code code, const tn_err *err);

static inline void need(tn_code code, const tn_err *err) {
    if (code != TN_OK && when_it_fails != NULL)
        when_it_fails(code, err);
    if (code != TN_OK)
        die("%s: %s", tn_code_name(code), err->msg);
}

/* ---- Store: gates and values between the ranks ---- */

static inline void open_store(void) {
    tn_err err = TN_ERR_INIT;

    if (strncmp(opt.store, "file:", 5) == 0)
        need(tn_store_file(&store, opt.store + 5, "test", &err), &err);
    else
        need(tn_store_tcp(&store, "127.0.0.1", (int)strtol(opt.store + 4, NULL, 10), false, opt.timeout, &err),
             &err);
}

static inline void put(const char *key, const void *p, size_t n) {
    tn_err err = TN_ERR_INIT;

    need(store.set(store.arg, key, p, n, &err), &err);
}

static inline void wait_for(const char *key) {
    tn_err err = TN_ERR_INIT;
    uint8_t *p;
    size_t n;

    need(store.get(store.arg, key, opt.timeout, &p, &n, &err), &err);
    free(p);
}

/* All ranks but `absent` have got here. Not a barrier of the group, so that streams stay as they are. */
static inline void gate_without(const char *name, int absent) {
    char key[80];
    int r;

    snprintf(key, sizeof(key), "gate/%s/%d", name, opt.rank);
    put(key, "1", 1);
    for (r = 0; r < opt.size; r++) {
        snprintf(key, sizeof(key), "gate/%s/%d", name, r);
        if (r != absent)
            wait_for(key);
    }
}

static inline void gate(const char *name) { gate_without(name, -1); }

static inline tn_pg *make_group(const char *name, tn_err *err, tn_code *code) {
    tn_pg_opts o = {.name = name,
                    .transport = opt.transport,
                    .host = opt.host,
                    .tls = opt.tls,
                    .timeout_ns = opt.timeout,
                    .segment = opt.segment,
                    .small_max = opt.small, .check = opt.check};
    tn_pg *out = NULL;

    *code = tn_pg_new(&out, &store, opt.rank, opt.size, &o, err);
    return out;
}

/* The work is passed by address: arguments are evaluated in any order. */
static inline tn_code finish(tn_code issued, tn_work **work, tn_err *err) {
    tn_code code = issued;
    tn_work *w = *work;

    if (issued == TN_OK) {
        code = tn_work_wait(w, opt.timeout + 20 * TN_SECOND, err);
        tn_work_unref(w);
    } else if (w != NULL) {
        die("a refused call left a work behind");
    }
    return code;
}
static inline void barrier(void) {
    tn_err err = TN_ERR_INIT;
    tn_work *w;

    need(finish(tn_pg_barrier(g, NULL, &w, &err), &w, &err), &err);
}
/* The operation must have failed within `limit` seconds with one of the codes and the words in its error. */
static inline void must_fail(tn_code code, const tn_err *err, tn_code want, const char *words, int64_t began,
                      int64_t limit) {
    int64_t took = tn_now() - began;

    if (code != want)
        die("the code is %s instead of %s: %s", tn_code_name(code), tn_code_name(want),
            code != TN_OK ? err->msg : "");
    if (strstr(err->msg, words) == NULL)
        die("the error does not say '%s': %s", words, err->msg);
    if (took > limit)
        die("it took %.3f s: %s", (double)took / 1e9, err->msg);
}
/* ---- Rounds of large sums, for what goes wrong in the middle ---- */

#define BIG ((size_t)1 << 20)
static float big[BIG];

static inline int64_t time_of(const char *key) {
    tn_err err = TN_ERR_INIT;
    int64_t at = 0;
    uint8_t *p;
    size_t n;

    need(store.get(store.arg, key, opt.timeout, &p, &n, &err), &err);
    if (n != sizeof(at))
        die("'%s' is not a time", key);
    memcpy(&at, p, n); /* clocks of one machine agree */
    free(p);
    return at;
}

/* `sum`: of the ranks that took part, of which there are n. */
static inline void check_sum_of(int i, int sum, int n) {
    float want = (float)(sum + n * i);
    size_t k;

    for (k = 0; k < BIG; k += 997)
        if (big[k] != want)
            die("round %d: element %zu is %g, not %g", i, k, (double)big[k], (double)want);
}

static inline void check_sum(int i) { check_sum_of(i, opt.size * (opt.size - 1) / 2, opt.size); }

static inline tn_code sum_round_in(tn_pg *in, int i, const tn_pg_call *call, tn_err *err) {
    tn_tensor t = tn_tensor_flat(big, TN_F32, (int64_t)BIG);
    tn_work *w;
    size_t k;

    for (k = 0; k < BIG; k++)
        big[k] = (float)(opt.rank + i);
    return finish(tn_pg_allreduce(in, &t, 1, TN_SUM, call, &w, err), &w, err);
}

static inline tn_code sum_round(int i, const tn_pg_call *call, tn_err *err) {
    return sum_round_in(g, i, call, err);
}

static inline void parse(int argc, char **argv) {
    int i;

    for (i = 1; i < argc; i++) {
        char *eq = strchr(argv[i], '='), *v;

        if (eq == NULL)
            die("not an option: %s", argv[i]);
        *eq = '\0';
        v = eq + 1;
        if (strcmp(argv[i], "mode") == 0)
            opt.mode = v;
        else if (strcmp(argv[i], "store") == 0)
            opt.store = v;
        else if (strcmp(argv[i], "transport") == 0)
            opt.transport = v;
        else if (strcmp(argv[i], "check") == 0)
            opt.check = strcmp(v, "1") == 0;
        else if (strcmp(argv[i], "host") == 0)
            opt.host = v;
        else if (strcmp(argv[i], "rank") == 0)
            opt.rank = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i], "size") == 0)
            opt.size = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i], "victim") == 0)
            opt.victim = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i], "which") == 0)
            opt.which = (int)strtol(v, NULL, 10);
        else if (strcmp(argv[i], "segment") == 0)
            opt.segment = (size_t)strtoull(v, NULL, 10);
        else if (strcmp(argv[i], "small") == 0)
            opt.small = (size_t)strtoull(v, NULL, 10);
        else if (strcmp(argv[i], "timeout") == 0)
            opt.timeout = strtoll(v, NULL, 10) * TN_MS;
        else if (strcmp(argv[i], "cert") == 0)
            opt.tls.cert = v;
        else if (strcmp(argv[i], "key") == 0)
            opt.tls.key = v;
        else if (strcmp(argv[i], "ca") == 0)
            opt.tls.ca = v;
        else
            die("not an option: %s", argv[i]);
    }
    if (opt.mode == NULL || opt.store == NULL || opt.size < 1 || opt.size > MAX_RANKS)
        die("mode=, store=, rank= and size= are needed");
}
typedef struct mode {
    const char *name;
    void (*run)(void);
    bool alone; /* makes its groups itself */
} mode;

/* All of main. */
static inline int play(int argc, char **argv, const mode *modes, size_t n) {
    tn_err err = TN_ERR_INIT;
    tn_code code;
    size_t i;

    parse(argc, argv);
    open_store();
    for (i = 0; i < n && strcmp(modes[i].name, opt.mode) != 0; i++)
        ;
    if (i == n)
        die("there is no mode %s", opt.mode);
    if (!modes[i].alone) {
        g = make_group(NULL, &err, &code);
        need(code, &err);
    }
    modes[i].run();
    tn_pg_free(g, 10 * TN_SECOND);
    tn_store_release(&store);
    return 0;
}

#endif

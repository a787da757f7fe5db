/* One rank of a test of process groups in which something goes wrong. Options: dist_rank.h. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "tests/sim/dist_rank.h"


static tn_code any_operation(int which, tn_err *err) {
    tn_tensor t = tn_tensor_flat(big, TN_F32, which == 1 ? 10 : (int64_t)BIG), views[MAX_RANKS],
              outs[MAX_RANKS];
    static float space[MAX_RANKS * 1000];
    tn_work *w;
    int r;

    for (r = 0; r < opt.size; r++) {
        views[r] = tn_tensor_flat(big + r * 1000, TN_F32, 1000);
        outs[r] = tn_tensor_flat(space + r * 1000, TN_F32, 1000);
    }
    switch (which) {
    case 0:
    case 1:
        return finish(tn_pg_allreduce(g, &t, 1, TN_SUM, NULL, &w, err), &w, err);
    case 2:
        return finish(tn_pg_allgather(g, &views[0], outs, NULL, &w, err), &w, err);
    case 3:
        return finish(tn_pg_alltoall(g, views, outs, NULL, &w, err), &w, err);
    case 4:
        return finish(tn_pg_reduce_scatter(g, views, outs, TN_SUM, NULL, &w, err), &w, err);
    default:
        return finish(tn_pg_barrier(g, NULL, &w, err), &w, err);
    }
}

/* A rank is killed before the group's first operation. Every survivor names it, whatever the operation; then
 * again. */
static void mode_killed_first(void) {
    char words[32];
    tn_err err = TN_ERR_INIT;
    int64_t began;
    tn_code code;

    snprintf(words, sizeof(words), "rank %d is gone", opt.victim);
    gate("made");
    if (opt.rank == opt.victim)
        raise(SIGKILL);
    wait_for("killed");
    began = tn_now();
    code = any_operation(opt.which, &err);
    must_fail(code, &err, TN_EPEER, words, began, 5 * TN_SECOND);
    code = any_operation(5, &err);
    must_fail(code, &err, TN_EPEER, words, began, 5 * TN_SECOND);
}

/* A rank is killed in the middle of a loop of operations that move much. */
static void mode_killed_midway(void) {
    char words[32];
    tn_err err = TN_ERR_INIT;
    tn_tensor t = tn_tensor_flat(big, TN_F32, (int64_t)BIG);
    int64_t began = 0;
    tn_code code = TN_OK;
    int i;

    snprintf(words, sizeof(words), "rank %d is gone", opt.victim);
    for (i = 0; i < 1000 && code == TN_OK; i++) {
        if (opt.rank == opt.victim && i == 5) {
            tn_work *w;

            need(tn_pg_allreduce(g, &t, 1, TN_SUM, NULL, &w, &err), &err);
            raise(SIGKILL);
        }
        began = tn_now();
        code = any_operation(0, &err);
    }
    must_fail(code, &err, TN_EPEER, words, began, 5 * TN_SECOND);
}

static tn_code same_as_others(const tn_pg_call *call, tn_err *err) {
    tn_tensor t = tn_tensor_flat(big, TN_F32, (int64_t)BIG);
    tn_work *w;
    tn_code code =
        opt.which == 0 ? tn_pg_barrier(g, call, &w, err) : tn_pg_allreduce(g, &t, 1, TN_SUM, call, &w, err);

    return finish(code, &w, err);
}

/* One rank stays away: the others time out and name it. */
static void mode_absent(void) {
    char words[64];
    tn_err err = TN_ERR_INIT;
    tn_pg_call soon = {.timeout_ns = 500 * TN_MS};
    int64_t began;
    tn_code code;
    int i;

    snprintf(words, sizeof(words), "waiting for rank %d, from whom", opt.victim);
    barrier();
    if (opt.rank == opt.victim) {
        for (i = 0; i < opt.size; i++) { /* comes back when the others have given up */
            char key[40];

            snprintf(key, sizeof(key), "gave up/%d", i);
            if (i != opt.rank)
                wait_for(key);
        }
        /* What the others sent before they gave up may complete its operation; the next one hears of it. */
        code = same_as_others(&soon, &err);
        if (code == TN_OK)
            code = same_as_others(&soon, &err);
        if (code != TN_ETIMEDOUT || strstr(err.msg, "reported by rank") == NULL)
            die("a late rank was not told: %s", code != TN_OK ? err.msg : "nothing");
    } else {
        char key[40];

        began = tn_now();
        code = same_as_others(&soon, &err);
        must_fail(code, &err, TN_ETIMEDOUT, words, began, 5 * TN_SECOND);
        snprintf(key, sizeof(key), "gave up/%d", opt.rank);
        put(key, "1", 1);
    }
    gate("over");
}

/* The last rank does something else: everyone fails by name, and the error says what either side did (which of
 * them saw it first differs). `which` chooses what. */
static void mode_mismatch(void) {
    bool odd = opt.rank == opt.size - 1;
    tn_tensor f32 = tn_tensor_flat(big, TN_F32, 100), f16 = tn_tensor_flat(big, TN_F16, 100),
              longer = tn_tensor_flat(big, TN_F32, 200), large = tn_tensor_flat(big, TN_F32, 500000);
    const char *usual = "allreduce SUM float32 of 400 bytes", *other = NULL;
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int64_t began = tn_now();
    tn_code code;

    switch (opt.which) {
    case 0:
        other = "broadcast float32 of 400 bytes";
        code = odd ? tn_pg_broadcast(g, &f32, 1, 0, NULL, &w, &err)
                   : tn_pg_allreduce(g, &f32, 1, TN_SUM, NULL, &w, &err);
        break;
    case 1:
        other = "allreduce SUM float16 of 200 bytes";
        code = tn_pg_allreduce(g, odd ? &f16 : &f32, 1, TN_SUM, NULL, &w, &err);
        break;
    case 2:
        other = "allreduce MAX float32 of 400 bytes";
        code = tn_pg_allreduce(g, &f32, 1, odd ? TN_MAX : TN_SUM, NULL, &w, &err);
        break;
    case 3:
        other = "allreduce SUM float32 of 800 bytes";
        code = tn_pg_allreduce(g, odd ? &longer : &f32, 1, TN_SUM, NULL, &w, &err);
        break;
    case 4:
        other = "allreduce SUM float32 of 2000000 bytes";
        code = tn_pg_allreduce(g, odd ? &large : &f32, 1, TN_SUM, NULL, &w, &err);
        break;
    default: /* refused on one rank only */
        other = "rank 2 refused the arguments of its own call";
        if (odd && tn_pg_allreduce(g, &f32, 1, TN_BXOR, NULL, &w, &err) == TN_OK)
            die("BXOR of float32 was accepted");
        code = odd ? tn_pg_barrier(g, NULL, &w, &err) : tn_pg_allreduce(g, &f32, 1, TN_SUM, NULL, &w, &err);
        break;
    }
    code = finish(code, &w, &err);
    must_fail(code, &err, TN_ESHAPE, usual, began, 5 * TN_SECOND);
    must_fail(code, &err, TN_ESHAPE, other, began, 5 * TN_SECOND);
    gate("over");
}

/* The same with check=1: every rank says which one differs, and how. */
static void mode_differs(void) {
    static const struct {
        const char *usual, *other;
    } said[] = {
        {"ranks 0, 1 and 3: allreduce SUM of float32 [10, 10]", "rank 2: allreduce SUM of float32 [100]"},
        {"ranks 0, 1 and 3: broadcast of float32 [10, 10] from root 0",
         "rank 2: broadcast of float32 [10, 10] from root 1"},
        {"ranks 0, 1 and 3: allreduce SUM of float32 [10, 10]", "rank 2: allreduce SUM of int32 [10, 10]"},
        {"ranks 0, 1 and 3: allreduce SUM of float32 [10, 10]", "rank 2: allreduce MAX of float32 [10, 10]"},
        {"ranks 0, 1 and 3: barrier", "rank 2: allreduce SUM of float32 [10, 10]"},
        {"ranks 0, 1 and 3: gather of float32 to root 3", "rank 2: scatter of float32 from root 3"},
        {"ranks 0, 1 and 3: allreduce SUM of float32 [10, 10] and 1 more",
         "rank 2: allreduce SUM of float32 [10, 10]"},
        {"ranks 0, 1 and 3: barrier", "rank 2: something with arguments that it refused itself"},
    };
    bool odd = opt.rank == 2;
    int64_t shape[2] = {10, 10};
    tn_tensor square[2], flat = tn_tensor_flat(big, TN_F32, 100), parts[MAX_RANKS];
    tn_err err = TN_ERR_INIT;
    tn_work *w;
    int64_t began = tn_now();
    tn_code code;
    int r;

    need(tn_tensor_init(&square[0], big, odd && opt.which == 2 ? TN_I32 : TN_F32, 2, shape, &err), &err);
    square[1] = flat;
    for (r = 0; r < opt.size; r++)
        parts[r] = tn_tensor_flat(big + 10 * r, TN_F32, 10);
    switch (opt.which) {
    case 0:
        code = tn_pg_allreduce(g, odd ? &flat : square, 1, TN_SUM, NULL, &w, &err);
        break;
    case 1:
        code = tn_pg_broadcast(g, square, 1, odd, NULL, &w, &err);
        break;
    case 2:
    case 3:
        code = tn_pg_allreduce(g, square, 1, odd && opt.which == 3 ? TN_MAX : TN_SUM, NULL, &w, &err);
        break;
    case 4:
        code = odd ? tn_pg_allreduce(g, square, 1, TN_SUM, NULL, &w, &err) : tn_pg_barrier(g, NULL, &w, &err);
        break;
    case 5:
        code = odd ? tn_pg_scatter(g, NULL, parts, 3, NULL, &w, &err)
                   : tn_pg_gather(g, parts, opt.rank == 3 ? parts : NULL, 3, NULL, &w, &err);
        break;
    case 6:
        code = tn_pg_allreduce(g, square, odd ? 1 : 2, TN_SUM, NULL, &w, &err);
        break;
    default:
        if (odd && tn_pg_allreduce(g, &flat, 1, TN_BXOR, NULL, &w, &err) == TN_OK)
            die("BXOR of float32 was accepted");
        code = tn_pg_barrier(g, NULL, &w, &err);
        break;
    }
    code = finish(code, &w, &err);
    must_fail(code, &err, TN_ESHAPE, said[opt.which].usual, began, 5 * TN_SECOND);
    must_fail(code, &err, TN_ESHAPE, said[opt.which].other, began, 5 * TN_SECOND);
    gate("over");
}

/* One rank checks, the others do not. */
static void mode_checks_alone(void) {
    tn_err err = TN_ERR_INIT;
    int64_t began;
    tn_code code;

    opt.check = opt.rank == opt.victim;
    g = make_group(NULL, &err, &code);
    need(code, &err);
    began = tn_now();
    code = sum_round(0, NULL, &err);
    must_fail(code, &err, TN_ESHAPE, "set it on all ranks or on none", began, 5 * TN_SECOND);
    gate("over");
}

/* One rank aborts the group while the others wait. */
static void mode_abort(void) {
    tn_err err = TN_ERR_INIT;
    int64_t began;
    tn_work *w;
    tn_code code;
    char words[80];

    snprintf(words, sizeof(words), "rank %d aborted the group: the user said so", opt.victim);
    barrier();
    gate("through"); /* an abort may still reach a barrier that others have left */
    began = tn_now();
    if (opt.rank == opt.victim) {
        tn_pg_abort(g, "the user said so");
        code = finish(tn_pg_barrier(g, NULL, &w, &err), &w, &err);
        must_fail(code, &err, TN_ECANCELED, words, began, 5 * TN_SECOND);
    } else {
        code = finish(tn_pg_barrier(g, NULL, &w, &err), &w, &err);
        must_fail(code, &err, TN_EPEER, words, began, 5 * TN_SECOND);
    }
    gate("over");
}

/* Someone does not come to the making of the group at all. */
static void mode_missing(void) {
    char words[60];
    tn_err err = TN_ERR_INIT;
    int64_t began = tn_now();
    tn_code code;

    opt.timeout = 700 * TN_MS;
    if (make_group(NULL, &err, &code) != NULL)
        die("a group was made without rank %d", opt.victim);
    snprintf(words, sizeof(words), "rank %d did not come", opt.victim);
    must_fail(code, &err, TN_ETIMEDOUT, words, began, 5 * TN_SECOND);
}
/* ---- Stopped, slow and silent ---- */

static double cpu_seconds(void) {
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* A rank is stopped from outside and goes on again: nobody takes it for dead, nobody spins, and sums are right.
 * */
static void mode_stopped(void) {
    tn_err err = TN_ERR_INIT;
    double before;
    int i;

    for (i = 0; i < 3; i++) {
        need(sum_round(i, NULL, &err), &err);
        check_sum(i);
    }
    gate("ready");
    if (opt.rank == opt.victim)
        raise(SIGSTOP); /* the test lets it go on */
    before = cpu_seconds();
    need(sum_round(i, NULL, &err), &err);
    check_sum(i);
    if (opt.rank != opt.victim && cpu_seconds() - before > 1.0)
        die("waiting took %.1f s of CPU time", cpu_seconds() - before);
    for (i = 4; i < 8; i++) {
        need(sum_round(i, NULL, &err), &err);
        check_sum(i);
    }
}

/* A rank is stopped for good: the others time out, not before the time, and name it. `which`: a collective, a
 * receive, or a send. */
static void mode_stopped_too_long(void) {
    tn_pg_call soon = {.timeout_ns = 2 * TN_SECOND};
    tn_tensor t = tn_tensor_flat(big, TN_F32, 10);
    tn_err err = TN_ERR_INIT;
    int64_t began;
    tn_code code;
    char words[64];
    tn_work *w;

    need(sum_round(0, NULL, &err), &err);
    if (opt.rank == opt.victim)
        raise(SIGSTOP); /* and is killed like this */
    wait_for("stopped");
    began = tn_now();
    if (opt.which == 0)
        code = sum_round(1, &soon, &err);
    else if (opt.which == 1)
        code = finish(tn_pg_recv(g, &t, opt.victim, 1, NULL, &soon, &w, &err), &w, &err);
    else
        code = finish(tn_pg_send(g, &t, opt.victim, 1, &soon, &w, &err), &w, &err);
    snprintf(words, sizeof(words), "rank %d%s", opt.victim, opt.which == 0 ? ", from whom" : "");
    must_fail(code, &err, TN_ETIMEDOUT, words, began, 5 * TN_SECOND);
    if (tn_now() - began < 1900 * TN_MS && strstr(err.msg, "reported by") == NULL)
        die("the time-out of 2 s came early: %s", err.msg);
    gate_without("gave up", opt.victim);
}

/* Everybody else is late by more than the others' patience, again and again: nothing is wrong. */
static void mode_slow(void) {
    tn_err err = TN_ERR_INIT;
    int i;

    for (i = 0; i < 3; i++) {
        struct timespec late = {.tv_nsec = 700 * TN_MS};

        if (opt.rank == (i == 2 ? 0 : opt.victim))
            nanosleep(&late, NULL);
        need(sum_round(i, NULL, &err), &err);
        check_sum(i);
        barrier();
    }
}

/* The victim's host goes silent (the test cuts its cable): everybody else names it within 5 s of the cut.
 * `which`: in the middle of a loop; while it does nothing and the others wait; before anything was sent; point
 * to point; when all leave. */
static void mode_silent(void) {
    tn_tensor t = tn_tensor_flat(big, TN_F32, 10);
    tn_err err = TN_ERR_INIT;
    tn_code code = TN_OK;
    char words[64];
    tn_work *w;
    int i;

    if (opt.which != 2)
        need(sum_round(0, NULL, &err), &err);
    gate("ready");
    if (opt.which == 4) { /* nobody waits for anything, and then all leave */
        int64_t cut = time_of("cut");

        tn_pg_free(g, 60 * TN_SECOND);
        g = NULL;
        if (opt.rank != opt.victim && tn_now() - cut > 8 * TN_SECOND)
            die("leaving took %.3f s", (double)(tn_now() - cut) / 1e9);
        gate("over");
        return;
    }
    if (opt.which != 0 && opt.rank == opt.victim) {
        (void)time_of("cut");
        gate("over");
        return;
    }
    if (opt.which == 2)
        (void)time_of("cut");
    if (opt.which == 3)
        code = finish(tn_pg_recv(g, &t, opt.victim, 1, NULL, NULL, &w, &err), &w, &err);
    for (i = 1; opt.which != 3 && code == TN_OK; i++)
        code = sum_round(i, NULL, &err);
    snprintf(words, sizeof(words), "rank %d is gone (its host has not answered", opt.victim);
    if (opt.rank != opt.victim)
        must_fail(code, &err, TN_EPEER, words, time_of("cut"), 5 * TN_SECOND);
    gate("over");
}

/* ---- What is left ---- */

static int entries(const char *path) {
    DIR *d = opendir(path);
    int n = 0;

    if (d == NULL)
        die("%s cannot be read", path);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* Back to what there was after the first round: NNG's threads stay, and nothing else. Connections are released
 * a moment after the group was freed. */
static void check_left(int round, int *fds, int *threads) {
    int64_t deadline = tn_deadline_after(tn_now(), 20 * TN_SECOND);
    struct timespec ts = {.tv_nsec = 10 * TN_MS};

    if (round < 3) { /* each way once, for what is made once in a process */
        struct timespec settle = {.tv_nsec = 500 * TN_MS};

        nanosleep(&settle, NULL);
        *fds = entries("/proc/self/fd");
        *threads = entries("/proc/self/task");
        return;
    }
    while (entries("/proc/self/fd") > *fds || entries("/proc/self/task") > *threads) {
        if (tn_now() >= deadline)
            die("round %d: %d descriptors and %d threads, where there were %d and %d", round,
                entries("/proc/self/fd"), entries("/proc/self/task"), *fds, *threads);
        nanosleep(&ts, NULL);
    }
}

/* Groups are made and end in every way, and leave no descriptor and no thread. */
static void mode_left(void) {
    tn_tensor t = tn_tensor_flat(big, TN_F32, 1000);
    int fds = 0, threads = 0, round, next = (opt.rank + 1) % opt.size,
        prev = (opt.rank + opt.size - 1) % opt.size;

    for (round = 0; round < 9; round++) {
        tn_err err = TN_ERR_INIT;
        tn_pg *smaller = NULL;
        tn_work *s, *r;
        char name[32];
        tn_code code;

        g = make_group(NULL, &err, &code);
        need(code, &err);
        need(sum_round(round, NULL, &err), &err);
        need(tn_pg_recv(g, &t, prev, 1, NULL, NULL, &r, &err), &err);
        need(tn_pg_send(g, &t, next, 1, NULL, &s, &err), &err);
        need(finish(TN_OK, &s, &err), &err);
        need(finish(TN_OK, &r, &err), &err);
        snprintf(name, sizeof(name), "round %d", round);
        gate(name);
        if (round % 3 == 1)
            tn_pg_abort(g, "enough");
        if (round % 3 == 2)
            need(tn_pg_shrink(g, NULL, &smaller, NULL, &err), &err);
        tn_pg_free(g, 5 * TN_SECOND);
        tn_pg_free(smaller, 5 * TN_SECOND);
        g = NULL;
        check_left(round, &fds, &threads);
    }
}

int main(int argc, char **argv) {
    static const mode modes[] = {
        {"killed_first", mode_killed_first, false},
        {"killed_midway", mode_killed_midway, false},
        {"absent", mode_absent, false},
        {"mismatch", mode_mismatch, false},
        {"abort", mode_abort, false},
        {"missing", mode_missing, true},
        {"differs", mode_differs, false},
        {"checks_alone", mode_checks_alone, true},
        {"left", mode_left, true},
        {"stopped", mode_stopped, false},
        {"stopped_too_long", mode_stopped_too_long, false},
        {"slow", mode_slow, false},
        {"silent", mode_silent, false},
    };

    return play(argc, argv, modes, sizeof(modes) / sizeof(modes[0]));
}

/* Federations in C alone: torchnative-server, and fed_client once a client, as real processes over real sockets. What
 * comes out is compared with the same federation computed here, in one process. */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "core/safetensors.h"
#include "fed/net/net.h"
#include "tests/sim/fed_linear.h"

#define CLIENTS 3
#define ROUNDS 6
#define PATIENCE (100 * TN_SECOND) /* for anything at all; sanitisers are slow */
#define MAX_ARGS 48

static char dir[64], tools[3000], here[3000];
static char state[200], initial[200], certs[200];

/* ---- Files ---- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void locate(void) {
    char self[3000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    ck_assert_int_gt((int)n, 0);
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(here, sizeof(here), "%s", self);
    *strrchr(self, '/') = '\0';
    snprintf(tools, sizeof(tools), "%.2900s/bin", self);
}

static void write_initial(const char *path, int64_t pad) {
    tn_layout l;
    tn_err err = TN_ERR_INIT;
    uint8_t *block;

    ck_assert_msg(linear_layout(&l, pad, &err) == TN_OK, "%s", err.msg);
    block = calloc(1, l.nbytes);
    ck_assert_ptr_nonnull(block);
    ck_assert_msg(tn_st_write(path, &l, block, NULL, 0, &err) == TN_OK, "%s", err.msg);
    free(block);
    tn_layout_release(&l);
}

static void setup(void) {
    locate();
    snprintf(dir, sizeof(dir), "/tmp/tn-test-fed-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(state, sizeof(state), "%s/state", dir);
    snprintf(initial, sizeof(initial), "%s/initial.safetensors", dir);
    snprintf(certs, sizeof(certs), "%s/certs", dir);
    write_initial(initial, 0);
}

static void teardown(void) { nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

static char *text_of(const char *name) {
    char path[300];
    uint8_t *text = NULL;
    size_t size;
    tn_err err = TN_ERR_INIT;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    ck_assert_msg(tn_file_read(path, 1u << 26, &text, &size, &err) == TN_OK, "%s", err.msg);
    return (char *)text;
}

/* False, too, while there is no such file yet. */
static bool says(const char *name, const char *fragment) {
    char path[400];
    uint8_t *text = NULL;
    size_t size;
    bool yes;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    yes = tn_file_read(path, 1u << 26, &text, &size, NULL) == TN_OK && strstr((char *)text, fragment) != NULL;
    free(text);
    return yes;
}

#define ck_assert_says(name, fragment)                                                       \
    do {                                                                                     \
        char *text_ = text_of(name);                                                         \
        ck_assert_msg(strstr(text_, fragment) != NULL, "%s does not say \"%s\":\n%s", name, fragment, text_); \
        free(text_);                                                                         \
    } while (0)

static void pause_ms(long ms) {
    struct timespec ts = {.tv_nsec = ms * TN_MS};

    nanosleep(&ts, NULL);
}

/* Waits for something that another process makes true. */
#define until(condition)                                                        \
    do {                                                                        \
        int64_t deadline_ = tn_now() + PATIENCE;                                \
        while (!(condition)) {                                                  \
            ck_assert_msg(tn_now() < deadline_, "this never came true: %s", #condition); \
            pause_ms(2);                                                        \
        }                                                                       \
    } while (0)

/* ---- Processes ---- */

/* Starts tools/program or here/program with its output in the file `log`; arguments end with NULL. It dies with this
 * test. */
static pid_t start_list(const char *folder, const char *program, const char *log, const char *const *args) {
    const char *argv[MAX_ARGS + 2];
    char path[4000], out[300];
    pid_t parent = getpid(), pid;
    int n = 1;

    snprintf(path, sizeof(path), "%s/%s", folder, program);
    snprintf(out, sizeof(out), "%s/%s", dir, log);
    argv[0] = path;
    argv[1] = NULL;
    while (args[n - 1] != NULL) {
        ck_assert_int_lt(n, MAX_ARGS);
        argv[n] = args[n - 1];
        argv[++n] = NULL;
    }
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        int fd = open(out, O_WRONLY | O_CREAT | O_APPEND, 0600);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
        dup2(fd, 1);
        dup2(fd, 2);
        execv(path, (char *const *)(uintptr_t)argv);
        fprintf(stderr, "cannot start %s: %s\n", path, strerror(errno));
        _exit(127);
    }
    return pid;
}

static int collect(const char **args, int n, va_list ap) {
    while ((args[n] = va_arg(ap, const char *)) != NULL) {
        n++;
        ck_assert_int_lt(n, MAX_ARGS);
    }
    return n;
}

/* Exit code, or 1000 + signal. */
static int ended(pid_t pid) {
    int64_t deadline = tn_now() + PATIENCE;
    int status;

    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);

        ck_assert(got >= 0 || errno == EINTR);
        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        if (tn_now() >= deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            ck_abort_msg("process %d hangs", (int)pid);
        }
        pause_ms(2);
    }
}

#define ck_assert_ended(pid, code, log)                                                   \
    do {                                                                                  \
        int code_ = ended(pid);                                                           \
        char *text_ = text_of(log);                                                       \
        ck_assert_msg(code_ == (code), "%s: exit %d, not %d:\n%s", log, code_, (code), text_); \
        free(text_);                                                                      \
    } while (0)

typedef struct server {
    pid_t pid;
    char url[200], log[32];
} server;

static void wait_for_endpoint(server *s) {
    char path[300], *text;
    int status;

    snprintf(path, sizeof(path), "%s/endpoint", state);
    until(access(path, R_OK) == 0 || waitpid(s->pid, &status, WNOHANG) != 0);
    if (access(path, R_OK) != 0)
        ck_abort_msg("the server ended:\n%s", text_of(s->log));
    text = text_of("state/endpoint");
    snprintf(s->url, sizeof(s->url), "%s", text);
    free(text);
    s->url[strcspn(s->url, "\n")] = '\0';
}

/* Over url, with the state, three clients and ROUNDS rounds; more arguments end with NULL and win. */
static server serve(const char *url, ...) {
    static int count;
    const char *args[MAX_ARGS] = {"--state", state, "--log-level", "debug"};
    char rounds[32], clients[32];
    server s;
    va_list ap;
    int n = 4;
    bool given[2] = {false, false};

    args[n++] = "--listen";
    args[n++] = url;
    va_start(ap, url);
    n = collect(args, n, ap);
    va_end(ap);
    for (int i = 0; i < n; i++) {
        given[0] |= strcmp(args[i], "--rounds") == 0;
        given[1] |= strcmp(args[i], "--min-clients") == 0;
    }
    snprintf(rounds, sizeof(rounds), "--rounds=%d", ROUNDS);
    snprintf(clients, sizeof(clients), "--min-clients=%d", CLIENTS);
    if (!given[0])
        args[n++] = rounds;
    if (!given[1])
        args[n++] = clients;
    args[n] = NULL;
    snprintf(s.log, sizeof(s.log), "server%d.log", count++);
    s.pid = start_list(tools, "torchnative-server", s.log, args);
    wait_for_endpoint(&s);
    return s;
}

#define LOOPBACK "tcp://127.0.0.1:0"

static const char *client_log(int k) {
    static char name[CLIENTS + 5][32];

    snprintf(name[k], sizeof(name[k]), "client%d.log", k);
    return name[k];
}

/* Client k trains on shard k. */
static pid_t client(const char *url, int k, ...) {
    char id[32], shard[16];
    const char *args[MAX_ARGS] = {"--server", url, "--id", id, "--shard", shard};
    va_list ap;

    snprintf(id, sizeof(id), "client-%d", k);
    snprintf(shard, sizeof(shard), "%d", k);
    va_start(ap, k);
    collect(args, 6, ap);
    va_end(ap);
    return start_list(here, "fed_client", client_log(k), args);
}

static pid_t client_tls(const char *url, const char *folder, const char *name, int k) {
    char shard[16];
    const char *args[] = {"--server", url, "--certs", folder, "--name", name, "--shard", shard, NULL};

    snprintf(shard, sizeof(shard), "%d", k);
    return start_list(here, "fed_client", client_log(k), args);
}

static int run(const char *program, const char *log, ...) {
    const char *args[MAX_ARGS];
    va_list ap;

    va_start(ap, log);
    collect(args, 0, ap);
    va_end(ap);
    return ended(start_list(tools, program, log, args));
}

/* ---- What should come out ---- */

typedef bool (*takes_part_fn)(int shard, uint64_t round);

static bool all_take_part(int shard, uint64_t round) {
    (void)shard;
    (void)round;
    return true;
}

/* The mean of the deltas weighted by examples, in float64, added in float32. */
static void reference_round(const tn_layout *l, float *model, int clients, uint64_t round, takes_part_fn takes_part) {
    size_t n = l->nbytes / sizeof(float);
    float *local = malloc(l->nbytes);
    double *sum = calloc(n, sizeof(*sum)), weight = 0;

    ck_assert(local != NULL && sum != NULL);
    for (int k = 0; k < clients; k++) {
        if (!takes_part(k, round))
            continue;
        memcpy(local, model, l->nbytes);
        linear_train(l, local, (unsigned)k, round);
        for (size_t i = 0; i < n; i++)
            sum[i] += (double)EXAMPLES_OF(k) * (double)(local[i] - model[i]);
        weight += (double)EXAMPLES_OF(k);
    }
    for (size_t i = 0; i < n; i++)
        model[i] = (float)((double)model[i] + sum[i] / weight);
    free(local);
    free(sum);
}

static uint8_t *model_of(uint64_t round, tn_layout *l) {
    char path[300];
    uint8_t *block;
    tn_err err = TN_ERR_INIT;

    snprintf(path, sizeof(path), "%s/models/round-%06llu.safetensors", state, (unsigned long long)round);
    ck_assert_msg(tn_st_read(path, l, &block, NULL, &err) == TN_OK, "%s", err.msg);
    return block;
}

static bool has_model(uint64_t round) {
    char path[300];

    snprintf(path, sizeof(path), "%s/models/round-%06llu.safetensors", state, (unsigned long long)round);
    return access(path, R_OK) == 0;
}

/* The final model is that of the reference, and has moved from where it began. */
static void check_result(int clients, uint64_t rounds, takes_part_fn takes_part) {
    tn_layout l;
    uint8_t *got = model_of(rounds, &l);
    const float *x = (const float *)(const void *)got;
    float *want = calloc(1, l.nbytes);
    double worst = 0, largest = 0;

    ck_assert_ptr_nonnull(want);
    for (uint64_t r = 1; r <= rounds; r++)
        reference_round(&l, want, clients, r, takes_part);
    for (size_t i = 0; i < l.nbytes / sizeof(float); i++) {
        double difference = fabs((double)x[i] - (double)want[i]);

        worst = fmax(worst, difference / fmax(1, fabs((double)want[i])));
        largest = fmax(largest, fabs((double)want[i]));
    }
    ck_assert_msg(worst <= 1e-6, "the model differs from the reference by %g", worst);
    ck_assert_msg(largest > 0.1, "the reference has not moved: %g", largest);
    free(want);
    free(got);
    tn_layout_release(&l);
}

static int leftovers;

static int look(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)ftw;
    if (type == FTW_F && (strstr(path, "/spool/") != NULL || strstr(path, ".tmp-") != NULL || strstr(path, "endpoint") != NULL)) {
        fprintf(stderr, "left over: %s\n", path);
        leftovers++;
    }
    return 0;
}

/* No half-written file, no update of a round that is over, no endpoint of a server that has ended. */
static void expect_no_leftovers(void) {
    leftovers = 0;
    nftw(state, look, 8, FTW_PHYS);
    ck_assert_int_eq(leftovers, 0);
}

/* ---- Federations ---- */

START_TEST(over_tcp) {
    server s = serve(LOOPBACK, "--model", initial, NULL);
    pid_t c[CLIENTS];

    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(s.url, k, NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(CLIENTS, ROUNDS, all_take_part);
    expect_no_leftovers();
    ck_assert_says(s.log, "round 6/6: 3 updates, loss ");
    ck_assert_says(s.log, "odd 1 (1 not finite)");
    ck_assert_says(client_log(0), "done 6");
    /* --keep is 5 by default: the last five, and the first of all */
    ck_assert(has_model(0) && !has_model(1) && has_model(2) && has_model(6));
}
END_TEST

START_TEST(over_ipc) {
    char url[200];
    server s;
    pid_t c[CLIENTS];

    snprintf(url, sizeof(url), "ipc://%s/socket", dir);
    s = serve(url, "--model", initial, NULL);
    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(s.url, k, NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(CLIENTS, ROUNDS, all_take_part);
}
END_TEST

static char cert[300], key[300], ca[300];

static server serve_tls(void) {
    snprintf(cert, sizeof(cert), "%s/server.pem", certs);
    snprintf(key, sizeof(key), "%s/server.key", certs);
    snprintf(ca, sizeof(ca), "%s/ca.pem", certs);
    return serve("tls+tcp://localhost:0", "--model", initial, "--tls-cert", cert, "--tls-key", key, "--tls-ca", ca, NULL);
}

START_TEST(over_mutual_tls) {
    char other[200], name[32], from[400], to[400];
    server s;
    pid_t c[CLIENTS], stranger;

    snprintf(other, sizeof(other), "%s/other", dir);
    ck_assert_int_eq(run("torchnative-ctl", "ctl.log", "cert", "init", "--dir", certs, "--clients", "1", NULL), 0);
    ck_assert_int_eq(run("torchnative-ctl", "ctl.log", "cert", "init", "--dir", other, "--clients", "1", NULL), 0);
    s = serve_tls();

    /* of another CA: each side would refuse the other */
    stranger = client_tls(s.url, other, "client-1", 3);
    ck_assert_ended(stranger, 1, client_log(3));
    ck_assert_says(client_log(3), "TN_EAUTH");

    /* the right CA, and an identity that is not enrolled */
    snprintf(from, sizeof(from), "%s/client-1.identity", other);
    snprintf(to, sizeof(to), "%s/thief.identity", certs);
    ck_assert_int_eq(rename(from, to), 0);
    snprintf(from, sizeof(from), "%s/client-1.pem", certs);
    snprintf(to, sizeof(to), "%s/thief.pem", certs);
    ck_assert_int_eq(link(from, to), 0);
    snprintf(from, sizeof(from), "%s/client-1.key", certs);
    snprintf(to, sizeof(to), "%s/thief.key", certs);
    ck_assert_int_eq(link(from, to), 0);
    stranger = client_tls(s.url, certs, "thief", 4);
    ck_assert_ended(stranger, 1, client_log(4));
    ck_assert_says(client_log(4), "is not enrolled");

    /* enrolled while the server runs */
    for (int k = 2; k <= CLIENTS; k++) {
        snprintf(name, sizeof(name), "client-%d", k);
        ck_assert_int_eq(run("torchnative-ctl", "ctl.log", "cert", "issue", name, "--dir", certs, NULL), 0);
    }
    pause_ms(999); /* the list is read again for unknown keys, at most once a second */
    pause_ms(100);
    for (int k = 0; k < CLIENTS; k++) {
        snprintf(name, sizeof(name), "client-%d", k + 1);
        c[k] = client_tls(s.url, certs, name, k);
    }
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(CLIENTS, ROUNDS, all_take_part);
    ck_assert(!says(s.log, "(not authenticated)"));
}
END_TEST

/* ---- Clients that fail ---- */

static bool without_2_from_3(int shard, uint64_t round) { return shard != 2 || round < 3; }
static bool without_1_in_2(int shard, uint64_t round) { return shard != 1 || round != 2; }

START_TEST(client_killed) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "2", "--start-clients", "3", "--resume-window", "0.3", NULL);
    pid_t c[CLIENTS] = {client(s.url, 0, NULL), client(s.url, 1, NULL), client(s.url, 2, "--do", "die", "--at", "3", NULL)};

    ck_assert_ended(c[0], 0, client_log(0));
    ck_assert_ended(c[1], 0, client_log(1));
    ck_assert_ended(c[2], 1000 + SIGKILL, client_log(2));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(CLIENTS, ROUNDS, without_2_from_3);
    ck_assert_says(s.log, "round 3 goes on without client client-2: its connection broke");
}
END_TEST

START_TEST(client_says_bye) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "2", "--start-clients", "3", NULL);
    pid_t c[CLIENTS] = {client(s.url, 0, NULL), client(s.url, 1, NULL), client(s.url, 2, "--do", "bye", "--at", "3", NULL)};

    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(CLIENTS, ROUNDS, without_2_from_3);
}
END_TEST

/* what it does, what it is told, whether its update of round 2 counts */
static const struct {
    const char *what, *told;
    takes_part_fn takes_part;
} misbehaviours[] = {
    {"nan", "refused TN_ENONFINITE client client-1: ", without_1_in_2},
    {"zero", "refused TN_EINVAL", without_1_in_2},
    {"early", "task 2 1\nrefused TN_EROUND", all_take_part},
    {"again", "task 2 1\ntask 2 1\n", all_take_part},
    {"twice", "done 6", all_take_part},
};

START_TEST(client_misbehaves) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "2", "--start-clients", "3", NULL);
    pid_t c[CLIENTS] = {client(s.url, 0, NULL), 0, client(s.url, 2, NULL)};

    c[1] = client(s.url, 1, "--do", misbehaviours[_i].what, "--at", "2", NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    ck_assert_says(client_log(1), misbehaviours[_i].told);
    check_result(CLIENTS, ROUNDS, misbehaviours[_i].takes_part);
    expect_no_leftovers();
}
END_TEST

/* The round closes at its deadline, with the mean of those who reported. */
START_TEST(client_silent) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "2", "--start-clients", "3", "--deadline", "2", "--rounds", "2",
                     NULL);
    pid_t c[CLIENTS] = {client(s.url, 0, NULL), client(s.url, 1, NULL), client(s.url, 2, "--do", "silent", "--at", "1", NULL)};

    until(has_model(1));
    kill(c[2], SIGKILL); /* it would be waited for in round 2 as well */
    for (int k = 0; k < 2; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(c[2], 1000 + SIGKILL, client_log(2));
    ck_assert_ended(s.pid, 0, s.log);
    ck_assert_says(s.log, "round 1 goes on without client client-2: no update came from it within 2 s");
    ck_assert_says(s.log, "round 1/2: 2 updates");
}
END_TEST

START_TEST(other_layout) {
    server s = serve(LOOPBACK, "--model", initial, NULL);
    pid_t c = client(s.url, 0, "--pad", "5", NULL);

    ck_assert_ended(c, 1, client_log(0));
    ck_assert_says(client_log(0), "TN_ESHAPE");
    ck_assert_says(client_log(0), "pad is in this client's model but not in the server's");
    kill(s.pid, SIGTERM);
    ck_assert_ended(s.pid, 0, s.log);
}
END_TEST

/* ---- A broken connection ---- */

/* Forwards connections to `port`. The first one is reset after `cut` bytes towards the server. Never returns. */
static void forward(int listening, uint16_t port, size_t cut) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger reset = {1, 0};
    bool was_cut = false;

    for (;;) {
        int a = accept(listening, NULL, NULL), b = socket(AF_INET, SOCK_STREAM, 0);
        struct pollfd p[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
        size_t passed = 0;
        char buffer[4096];

        if (a < 0 || b < 0 || connect(b, (struct sockaddr *)&to, sizeof(to)) != 0)
            _exit(1);
        while ((was_cut || passed < cut) && poll(p, 2, -1) > 0) {
            int from = p[0].revents != 0 ? 0 : 1;
            ssize_t n = read(p[from].fd, buffer, sizeof(buffer));

            if (n <= 0)
                break;
            for (ssize_t sent = 0, m; sent < n; sent += m) {
                if ((m = write(p[1 - from].fd, buffer + sent, (size_t)(n - sent))) <= 0)
                    break;
            }
            if (from == 0)
                passed += (size_t)n;
        }
        was_cut = true;
        setsockopt(a, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(a);
        close(b);
    }
}

static pid_t start_proxy(const char *url, size_t cut, char *out, size_t cap) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    pid_t pid;

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, len), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(out, cap, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGPIPE, SIG_IGN);
        forward(fd, (uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10), cut);
    }
    close(fd);
    return pid;
}

/* The connection breaks in the middle of an upload of several chunks; the client comes back, and goes on. */
START_TEST(cut_upload) {
    const int64_t pad = 500000;
    char url[64];
    server s;
    pid_t c[2], proxy;

    write_initial(initial, pad);
    s = serve(LOOPBACK, "--model", initial, "--rounds", "1", "--min-clients", "2", NULL);
    proxy = start_proxy(s.url, 1200000, url, sizeof(url));
    c[0] = client(s.url, 0, NULL);
    c[1] = client(url, 1, NULL);
    for (int k = 0; k < 2; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    kill(proxy, SIGKILL);
    ck_assert_int_eq(ended(proxy), 1000 + SIGKILL);
    ck_assert_says(s.log, "client client-1 goes on with its update at byte ");
    check_result(2, 1, all_take_part);
    expect_no_leftovers();
}
END_TEST

/* The same in the middle of a download. */
START_TEST(cut_download) {
    const int64_t pad = 1000000;
    char url[64];
    server s;
    pid_t c[2], proxy;

    write_initial(initial, pad);
    s = serve(LOOPBACK, "--model", initial, "--rounds", "1", "--min-clients", "2", NULL);
    proxy = start_proxy(s.url, 700, url, sizeof(url)); /* HELLO, NEXT, and some of the GETs */
    c[0] = client(s.url, 0, NULL);
    c[1] = client(url, 1, NULL);
    for (int k = 0; k < 2; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    kill(proxy, SIGKILL);
    ck_assert_int_eq(ended(proxy), 1000 + SIGKILL);
    check_result(2, 1, all_take_part);
}
END_TEST

/* ---- The server dies, stops, goes on ---- */

static void check_same_bits(const uint8_t *want, uint64_t round) {
    tn_layout l;
    uint8_t *got = model_of(round, &l);

    ck_assert_msg(memcmp(got, want, l.nbytes) == 0, "the final model has other bits than that of the undisturbed job");
    free(got);
    tn_layout_release(&l);
}

/* The final model of a job that nothing disturbs; its state and logs are gone afterwards. */
static uint8_t *undisturbed(uint64_t rounds, const char *rounds_text) {
    server s;
    pid_t c[CLIENTS];
    tn_layout l;
    uint8_t *model;

    s = serve(LOOPBACK, "--model", initial, "--rounds", rounds_text, NULL);
    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(s.url, k, NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    model = model_of(rounds, &l);
    tn_layout_release(&l);
    nftw(state, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    for (int k = 0; k < CLIENTS; k++) {
        char path[300];

        snprintf(path, sizeof(path), "%s/%.31s", dir, client_log(k));
        unlink(path);
    }
    return model;
}

START_TEST(server_killed) {
    uint8_t *want = undisturbed(12, "12");
    server s = serve(LOOPBACK, "--model", initial, "--rounds", "12", NULL);
    char url[200];
    pid_t c[CLIENTS];

    memcpy(url, s.url, sizeof(url));
    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(url, k, NULL);
    for (uint64_t round = 2; round <= 8; round += 3) {
        until(has_model(round));
        pause_ms(3 * (long)round); /* somewhere in the round that follows */
        kill(s.pid, SIGKILL);
        ck_assert_int_eq(ended(s.pid), 1000 + SIGKILL);
        s = serve(url, "--rounds", "12", NULL);
    }
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    check_same_bits(want, 12);
    check_result(CLIENTS, 12, all_take_part);
    expect_no_leftovers();
    free(want);
}
END_TEST

START_TEST(server_stopped_and_resumed) {
    uint8_t *want = undisturbed(12, "12");
    server s = serve(LOOPBACK, "--model", initial, "--rounds", "12", NULL);
    char url[200];
    pid_t c[CLIENTS];

    memcpy(url, s.url, sizeof(url));
    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(url, k, NULL);
    until(has_model(3));
    kill(s.pid, SIGTERM);
    ck_assert_ended(s.pid, 0, s.log);
    ck_assert_says(s.log, "start it with the same --state to go on");
    expect_no_leftovers();
    s = serve(url, "--rounds", "12", "--model", initial, NULL); /* the same model may be named again */
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    check_same_bits(want, 12);
    free(want);

    /* A finished job is done at once, and can be made longer. */
    ck_assert_int_eq(run("torchnative-server", "again.log", "--listen", LOOPBACK, "--state", state, "--rounds", "12", NULL), 0);
    ck_assert_says("again.log", "were done before");
    s = serve(LOOPBACK, "--rounds", "13", NULL);
    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(s.url, k, NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(CLIENTS, 13, all_take_part);
}
END_TEST

/* Clients are there first, and wait. */
START_TEST(server_comes_late) {
    server s = serve(LOOPBACK, "--model", initial, NULL);
    pid_t c[CLIENTS];
    char url[200];

    memcpy(url, s.url, sizeof(url));
    kill(s.pid, SIGTERM);
    ck_assert_ended(s.pid, 0, s.log);
    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(url, k, NULL);
    for (int k = 0; k < CLIENTS; k++)
        until(says(client_log(k), "notice waiting for the server at "));
    s = serve(url, "--model", initial, NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    ck_assert_says(client_log(0), "notice connected to the server");
    check_result(CLIENTS, ROUNDS, all_take_part);
}
END_TEST

START_TEST(server_never_comes) {
    pid_t c = client("tcp://127.0.0.1:1", 0, "--connect-timeout", "0.5", NULL);

    ck_assert_ended(c, 1, client_log(0));
    ck_assert_says(client_log(0), "TN_EPEER");
    ck_assert_says(client_log(0), "the server at tcp://127.0.0.1:1 could not be reached for 0.");
}
END_TEST

START_TEST(minimum_never_reached) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "2", "--wait-timeout", "1.5", NULL);
    pid_t c = client(s.url, 0, NULL);

    ck_assert_ended(c, 1, client_log(0));
    ck_assert_says(client_log(0), "notice waiting for 2 clients, 1 is here");
    ck_assert_says(client_log(0), "the job failed: waited 1.5 s for 2 clients, 1 is here");
    ck_assert_ended(s.pid, 1, s.log);
    ck_assert_says(s.log, "waited 1.5 s for 2 clients, 1 is here");
}
END_TEST

START_TEST(one_client_is_enough) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "1", NULL);
    pid_t c = client(s.url, 0, NULL);

    ck_assert_ended(c, 0, client_log(0));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(1, ROUNDS, all_take_part);
}
END_TEST

START_TEST(part_of_the_clients) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "2", "--start-clients", "3", "--clients-per-round", "2", NULL);
    pid_t c[CLIENTS];

    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(s.url, k, NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    ck_assert_ended(s.pid, 0, s.log);
    ck_assert_says(s.log, "round 6/6: 2 updates");
}
END_TEST

/* ---- Hostile peers ---- */

static int raw_connect(const char *url) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static void header(uint8_t out[32], uint8_t type, uint64_t id, uint64_t size) {
    tn_wr w = tn_wr_fixed(out, 32);

    tn_wr_bytes(&w, "TN01", 4);
    tn_wr_u8(&w, 1);
    tn_wr_u8(&w, type);
    tn_wr_u16(&w, 0);
    tn_wr_u32(&w, 0);
    tn_wr_u32(&w, 0);
    tn_wr_u64(&w, id);
    tn_wr_u64(&w, size);
}

static bool read_all(int fd, void *p, size_t n) {
    for (uint8_t *to = p; n > 0;) {
        ssize_t got = read(fd, to, n);

        if (got <= 0)
            return false;
        to += got;
        n -= (size_t)got;
    }
    return true;
}

/* Reads a frame's body; returns its type, 0 at the end of the stream. */
static uint8_t read_frame(int fd, uint8_t *body, size_t cap, size_t *n) {
    uint8_t h[32];
    uint64_t size = 0;

    if (!read_all(fd, h, sizeof(h)))
        return 0;
    for (int i = 7; i >= 0; i--)
        size = size << 8 | h[24 + i];
    ck_assert_uint_le(size, cap);
    ck_assert(read_all(fd, body, size));
    *n = size;
    return h[5];
}

/* What each says after CHALLENGE, and the code that it is refused with (TN_OK: closed without a word). */
static const struct {
    const char *what;
    uint8_t type;
    uint64_t size;
    const char *bytes;
    tn_code code;
} hostile[] = {
    {"no frame of ours", 0, 0, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", TN_OK},
    {"an unknown type", 77, 0, NULL, TN_EPROTO},
    {"a request before HELLO", TN_MSG_NEXT, 0, NULL, TN_EPROTO},
    {"an upload before HELLO", TN_MSG_PUT, 1u << 20, NULL, TN_EPROTO},
    {"a huge HELLO", TN_MSG_HELLO, UINT64_MAX, NULL, TN_ETOOBIG},
    {"an empty HELLO", TN_MSG_HELLO, 0, NULL, TN_EPROTO},
    {"a HELLO that is no CBOR", TN_MSG_HELLO, 4, "\xff\xff\xff\xff", TN_EPROTO},
    {"a HELLO of version 2", TN_MSG_HELLO, 10, "\xa1\x67version\x02", TN_EVERSION},
};
#define HOSTILE ((int)(sizeof(hostile) / sizeof(hostile[0])))

START_TEST(hostile_peers) {
    server s = serve(LOOPBACK, "--model", initial, NULL);
    static uint8_t body[TN_MSG_MAX_SMALL];
    pid_t c[CLIENTS];
    int open_ones[20];

    for (int i = 0; i < 20; i++)
        open_ones[i] = raw_connect(s.url); /* and never says anything */
    for (int i = 0; i < HOSTILE; i++) {
        int fd = raw_connect(s.url);
        uint8_t h[32];
        tn_msg_error m;
        tn_err err = TN_ERR_INIT;
        size_t n = 0;

        ck_assert_uint_eq(read_frame(fd, body, sizeof(body), &n), TN_MSG_CHALLENGE);
        header(h, hostile[i].type, 1, hostile[i].size);
        if (hostile[i].type != 0)
            ck_assert_int_eq((int)write(fd, h, sizeof(h)), 32);
        if (hostile[i].bytes != NULL)
            ck_assert_int_gt((int)write(fd, hostile[i].bytes, strlen(hostile[i].bytes)), 0);
        if (hostile[i].code != TN_OK) {
            ck_assert_msg(read_frame(fd, body, sizeof(body), &n) == TN_MSG_ERROR, "%s was not refused", hostile[i].what);
            ck_assert_msg(tn_msg_error_decode(&m, body, n, &err) == TN_OK, "%s", err.msg);
            ck_assert_msg(m.code == hostile[i].code, "%s was refused with %s: %s", hostile[i].what, tn_code_name(m.code),
                          m.text);
        }
        ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
        ck_assert_uint_eq(read_frame(fd, body, sizeof(body), &n), 0);
        close(fd);
    }
    for (int k = 0; k < CLIENTS; k++)
        c[k] = client(s.url, k, NULL);
    for (int k = 0; k < CLIENTS; k++)
        ck_assert_ended(c[k], 0, client_log(k));
    for (int i = 0; i < 20; i++)
        close(open_ones[i]);
    ck_assert_ended(s.pid, 0, s.log);
    check_result(CLIENTS, ROUNDS, all_take_part);
}
END_TEST

/* A second connection with the same id takes the place of the first, which is told so. */
START_TEST(replaced_connection) {
    server s = serve(LOOPBACK, "--model", initial, "--min-clients", "2", "--rounds", "1", NULL);
    pid_t first = client(s.url, 0, NULL), second, other;

    until(says(client_log(0), "notice waiting for 2 clients"));
    second = start_list(here, "fed_client", "second.log",
                        (const char *const[]){"--server", s.url, "--id", "client-0", "--shard", "0", NULL});
    ck_assert_ended(first, 1, client_log(0));
    ck_assert_says(client_log(0), "a newer connection of client-0 has replaced this one");
    other = client(s.url, 1, NULL);
    ck_assert_ended(second, 0, "second.log");
    ck_assert_ended(other, 0, client_log(1));
    ck_assert_ended(s.pid, 0, s.log);
    check_result(2, 1, all_take_part);
}
END_TEST

/* ---- What bad input gets ---- */

static char not_a_model[200], missing[200];

/* The server's arguments, what it says, and its exit code. @M: a good model, @S: the state, @X: a file that is no model. */
static const struct {
    const char *args[14];
    const char *says;
    int code;
} wrong[] = {
    {{"--no-such-flag"}, "--no-such-flag", 2},
    {{"--state", "@S", "--model", "@M"}, "--listen is missing", 2},
    {{"--listen", LOOPBACK, "--model", "@M"}, "--state is missing", 2},
    {{"--listen", LOOPBACK, "--state", "@S"}, "--model is missing", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@N"}, "missing.safetensors", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@X"}, "broken.safetensors", 2},
    {{"--listen", "tcp://0.0.0.0:0", "--state", "@S", "--model", "@M"}, "--insecure", 2},
    {{"--listen", "nonsense", "--state", "@S", "--model", "@M"}, "nonsense", 2},
    {{"--listen", "tcp://127.0.0.1:99999", "--state", "@S", "--model", "@M"}, "99999", 2},
    {{"--listen", "tls+tcp://localhost:0", "--state", "@S", "--model", "@M"}, "--tls-cert is missing", 2},
    {{"--listen", "tls+tcp://localhost:0", "--state", "@S", "--model", "@M", "--tls-cert", "@N", "--tls-key", "@N", "--tls-ca", "@N"},
     "missing.safetensors cannot be read", 2},
    {{"--listen", "tls+tcp://localhost:0", "--state", "@S", "--model", "@M", "--tls-cert", "@X", "--tls-key", "@X", "--tls-ca", "@X"},
     "broken.safetensors", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--rounds", "0"}, "--rounds", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--rounds", "many"}, "many", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--deadline", "-1"}, "--deadline", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--min-clients", "3", "--start-clients", "2"}, "--start-clients", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--clients-per-round", "3", "--fraction", "0.5"}, "--fraction", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--aggregator", "krum"}, "--aggregator krum is not built yet", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--selection", "oort"}, "--selection oort is not built yet", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--durability", "hope"}, "--durability hope", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--log-level", "loud"}, "--log-level loud", 2},
    {{"--http", "http://127.0.0.1:0"}, "--http is not built yet", 2},
    {{"--secagg"}, "--secagg is not built yet", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--dp", "central"}, "--dp: there is no \"central\"", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--dp-budget", "1"}, "--dp-budget needs --dp", 2},
    {{"--parent", "tcp://127.0.0.1:1"}, "--parent is not built yet", 2},
    {{"--config", "@N"}, "missing.safetensors", 2},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@M", "--check"}, "the settings are valid", 0},
    {{"--listen", LOOPBACK, "--state", "@S", "--model", "@X", "--check"}, "broken.safetensors", 2},
    {{"--version"}, "torchnative-server 0.", 0},
    {{"--help"}, "--min-clients N", 0},
};

static const char *expand(const char *arg) {
    if (arg != NULL && arg[0] == '@')
        return arg[1] == 'M' ? initial : arg[1] == 'S' ? state : arg[1] == 'X' ? not_a_model : missing;
    return arg;
}

START_TEST(wrong_usage) {
    const tn_part part = {"no model at all", 15};
    const char *args[16];
    char path[300];

    snprintf(not_a_model, sizeof(not_a_model), "%s/broken.safetensors", dir);
    snprintf(missing, sizeof(missing), "%s/missing.safetensors", dir);
    ck_assert_int_eq(tn_file_write_atomic(not_a_model, &part, 1, 0644, NULL), TN_OK);
    for (int i = 0; i < 14; i++)
        args[i] = expand(wrong[_i].args[i]);
    args[14] = NULL;
    ck_assert_ended(start_list(tools, "torchnative-server", "wrong.log", args), wrong[_i].code, "wrong.log");
    ck_assert_says("wrong.log", wrong[_i].says);
    snprintf(path, sizeof(path), "%s/models/round-000000.safetensors", state);
    ck_assert_int_ne(access(path, F_OK), 0);
    expect_no_leftovers();
}
END_TEST

START_TEST(already_in_use) {
    char other_state[200], other_model[200];
    server s = serve(LOOPBACK, "--model", initial, NULL);

    snprintf(other_state, sizeof(other_state), "%s/other", dir);
    snprintf(other_model, sizeof(other_model), "%s/other.safetensors", dir);
    /* the port */
    ck_assert_int_eq(run("torchnative-server", "port.log", "--listen", s.url, "--state", other_state, "--model", initial, NULL), 1);
    ck_assert_says("port.log", strrchr(s.url, ':'));
    ck_assert_says("port.log", "in use");
    /* the state */
    ck_assert_int_eq(run("torchnative-server", "state.log", "--listen", LOOPBACK, "--state", state, "--model", initial, NULL), 1);
    ck_assert_says("state.log", "is in use by the server with process id");
    wait_for_endpoint(&s); /* still there */
    kill(s.pid, SIGTERM);
    ck_assert_ended(s.pid, 0, s.log);
    /* another job */
    write_initial(other_model, 3);
    ck_assert_int_eq(run("torchnative-server", "model.log", "--listen", LOOPBACK, "--state", state, "--model", other_model, NULL), 1);
    ck_assert_says("model.log", "pad is in ");
    ck_assert_int_eq(run("torchnative-server", "job.log", "--listen", LOOPBACK, "--state", state, "--job", "other", NULL), 2);
    ck_assert_says("job.log", "was begun with default");
}
END_TEST

/* Damage that others have done to STATE: named, and nothing is overwritten. */
static void sql(const char *statement) {
    char path[300];
    sqlite3 *db;

    snprintf(path, sizeof(path), "%s/state.db", state);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, statement, NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
}

static void overwrite(const char *name, const char *text) {
    const tn_part part = {text, strlen(text)};
    char path[300];

    snprintf(path, sizeof(path), "%s/%s", state, name);
    ck_assert_int_eq(tn_file_write_atomic(path, &part, 1, 0644, NULL), TN_OK);
}

static void check_refused(const char *log, const char *fragment) {
    ck_assert_int_eq(run("torchnative-server", log, "--listen", LOOPBACK, "--state", state, NULL), 1);
    ck_assert_says(log, fragment);
}

START_TEST(damaged_state) {
    server s = serve(LOOPBACK, "--model", initial, NULL);
    char path[300], other[300];

    kill(s.pid, SIGTERM);
    ck_assert_ended(s.pid, 0, s.log);
    sql("PRAGMA user_version = 99");
    check_refused("newer.log", "state.db has format 99, this program knows formats up to 1");
    sql("PRAGMA user_version = 1");
    snprintf(path, sizeof(path), "%s/models/round-000000.safetensors", state);
    snprintf(other, sizeof(other), "%s/other.safetensors", dir);
    write_initial(other, 2);
    ck_assert_int_eq(rename(path, initial), 0);
    check_refused("gone.log", "round-000000.safetensors");
    ck_assert_int_eq(rename(other, path), 0);
    check_refused("changed.log", "round-000000.safetensors is not the model that round 0 ended with");
    ck_assert_int_eq(rename(initial, path), 0);
    overwrite("identity", "no identity");
    check_refused("identity.log", "identity");
    snprintf(other, sizeof(other), "%s/identity", state);
    ck_assert_int_eq(unlink(other), 0);
    overwrite("state.db", "this was a journal once, and is none any more");
    check_refused("db.log", "state.db");
    expect_no_leftovers();
}
END_TEST

START_TEST(certificates) {
    char path[300];

    ck_assert_int_eq(run("torchnative-ctl", "a.log", "cert", "init", "--dir", certs, "--clients", "2", NULL), 0);
    ck_assert_says("a.log", "client-2.identity");
    ck_assert_says("a.log", "torchnative-server --listen tls+tcp://");
    ck_assert_int_eq(run("torchnative-ctl", "b.log", "cert", "init", "--dir", certs, NULL), 1);
    ck_assert_says("b.log", "ca.pem");
    ck_assert_int_eq(run("torchnative-ctl", "c.log", "cert", "issue", "client-2", "--dir", certs, NULL), 1);
    ck_assert_says("c.log", "client-2");
    ck_assert_int_eq(run("torchnative-ctl", "d.log", "cert", "issue", "client-3", "--dir", certs, "--json", NULL), 0);
    ck_assert_says("d.log", "{\"written\": [\"");
    ck_assert_says("certs/enrolled", "client-3 ");
    ck_assert_int_eq(run("torchnative-ctl", "e.log", "cert", "issue", "edge", "--server", "--host", "10.1.2.3", "--dir", certs, NULL), 0);
    ck_assert(!says("certs/enrolled", "edge "));
    ck_assert_int_eq(run("torchnative-ctl", "f.log", "cert", "issue", "../x", "--dir", certs, NULL), 2);
    ck_assert_int_eq(run("torchnative-ctl", "g.log", "cert", "issue", "x", "--dir", missing[0] ? missing : "/nowhere", NULL), 1);
    ck_assert_int_eq(run("torchnative-ctl", "h.log", "status", NULL), 2);
    ck_assert_says("h.log", "status is not built yet");
    ck_assert_int_eq(run("torchnative-ctl", "i.log", "cert", "revoke", "client-1", NULL), 2);
    ck_assert_says("i.log", "cert revoke is not built yet");
    ck_assert_int_eq(run("torchnative-ctl", "j.log", "dance", NULL), 2);
    snprintf(path, sizeof(path), "%s/x.pem", certs);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fed");
    TCase *t = tcase_create("processes");
    SRunner *r;
    int failed;

    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, over_tcp);
    tcase_add_test(t, over_ipc);
    tcase_add_test(t, over_mutual_tls);
    tcase_add_test(t, client_killed);
    tcase_add_test(t, client_says_bye);
    tcase_add_loop_test(t, client_misbehaves, 0, (int)(sizeof(misbehaviours) / sizeof(misbehaviours[0])));
    tcase_add_test(t, client_silent);
    tcase_add_test(t, other_layout);
    tcase_add_test(t, cut_upload);
    tcase_add_test(t, cut_download);
    tcase_add_test(t, server_killed);
    tcase_add_test(t, server_stopped_and_resumed);
    tcase_add_test(t, server_comes_late);
    tcase_add_test(t, server_never_comes);
    tcase_add_test(t, minimum_never_reached);
    tcase_add_test(t, one_client_is_enough);
    tcase_add_test(t, part_of_the_clients);
    tcase_add_test(t, hostile_peers);
    tcase_add_test(t, replaced_connection);
    tcase_add_loop_test(t, wrong_usage, 0, (int)(sizeof(wrong) / sizeof(wrong[0])));
    tcase_add_test(t, already_in_use);
    tcase_add_test(t, damaged_state);
    tcase_add_test(t, certificates);
    suite_add_tcase(s, t);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}

/* Conformance of the transports: one suite, run over every scheme. Each test is a process of its own, and NNG is touched in
 * tests only. Certificates are made once, in main. */
#include <check.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "core/random.h"
#include "transport/internal.h"

#define LONG (60 * TN_SECOND)
#define MIB ((size_t)1 << 20)

enum { TCP, IPC, TLS, INPROC, SCHEMES };

static char dir[] = "/tmp/tn-transport-XXXXXX";
static char path_ca[64], path_cert[64], path_key[64], path_client[64], path_client_key[64];
static char other_ca[64], other_cert[64], other_key[64];

static const tn_tx_opts server_opts = {.cert = path_cert, .key = path_key, .ca = path_ca};
static const tn_tx_opts client_opts = {.cert = path_client, .key = path_client_key, .ca = path_ca};

/* ---- helpers ---- */

static const char *listen_url(int scheme) {
    static char url[128];

    switch (scheme) {
    case TCP: return "tcp://127.0.0.1:0";
    case TLS: return "tls+tcp://127.0.0.1:0";
    case INPROC: return "inproc://conformance";
    default: snprintf(url, sizeof(url), "ipc://%s/%d.sock", dir, (int)getpid()); return url;
    }
}

/* A callback to wait for. */
typedef struct call {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int done;
    tn_tx_conn *conn;
    tn_err err;
} call;

#define CALL_INIT {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER}

static void on_conn(void *arg, tn_tx_conn *conn, const tn_err *err) {
    call *c = arg;

    pthread_mutex_lock(&c->lock);
    c->done++;
    c->conn = conn;
    c->err = *err;
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

static void on_done(void *arg, const tn_err *err) {
    on_conn(arg, NULL, err);
}

/* Its code; the call can then be used again. */
static tn_code await(call *c) {
    pthread_mutex_lock(&c->lock);
    while (c->done == 0)
        pthread_cond_wait(&c->cond, &c->lock);
    ck_assert_int_eq(c->done, 1);
    c->done = 0;
    pthread_mutex_unlock(&c->lock);
    return c->err.code;
}

static void ok(tn_code code, const tn_err *e) {
    ck_assert_msg(code == TN_OK, "%s: %s", tn_code_name(code), e->msg);
}

static void await_ok(call *c) {
    tn_code code = await(c);

    ok(code, &c->err);
}

static tn_tx_listener *must_listen(int scheme) {
    tn_tx_listener *l = NULL;
    tn_err e = TN_ERR_INIT;

    ok(tn_tx_listen(&l, listen_url(scheme), scheme == TLS ? &server_opts : NULL, &e), &e);
    return l;
}

static tn_tx_conn *must_dial(int scheme, const tn_tx_listener *l) {
    tn_tx_conn *c = NULL;
    tn_err e = TN_ERR_INIT;

    ok(tn_tx_dial_wait(&c, tn_tx_listener_url(l), scheme == TLS ? &client_opts : NULL, LONG, &e), &e);
    return c;
}

static tn_tx_conn *must_accept(tn_tx_listener *l) {
    tn_tx_conn *c = NULL;
    tn_err e = TN_ERR_INIT;

    ok(tn_tx_accept_wait(l, &c, LONG, &e), &e);
    return c;
}

/* Two ends that are connected; with TLS only once bytes flow. */
typedef struct duo {
    tn_tx_listener *l;
    tn_tx_conn *a, *b; /* dialled, accepted */
} duo;

static duo duo_open(int scheme) {
    duo d = {.l = must_listen(scheme)};

    d.a = must_dial(scheme, d.l);
    d.b = must_accept(d.l);
    return d;
}

static void duo_close(duo *d) {
    tn_tx_conn_unref(d->a);
    tn_tx_conn_unref(d->b);
    tn_tx_listener_free(d->l);
}

static void fill(uint8_t *p, size_t n, uint64_t seed) {
    tn_rng r = tn_rng_seed(seed);

    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(tn_rng_u64(&r) >> 56);
}

static void *alloc(size_t n) {
    void *p = malloc(n > 0 ? n : 1);

    ck_assert_ptr_nonnull(p);
    return p;
}

/* n bytes from one end to the other, in one call each. */
static void pass(tn_tx_conn *from, tn_tx_conn *to, size_t n, uint64_t seed) {
    uint8_t *out = alloc(n), *in = alloc(n);
    tn_iov send = {out, n}, recv = {in, n};
    call s = CALL_INIT, r = CALL_INIT;

    fill(out, n, seed);
    memset(in, 0, n);
    tn_tx_recv(to, &recv, 1, LONG, on_done, &r);
    tn_tx_send(from, &send, 1, LONG, on_done, &s);
    await_ok(&s);
    await_ok(&r);
    ck_assert(memcmp(in, out, n) == 0);
    free(out);
    free(in);
}

/* ---- bytes ---- */

START_TEST(bytes_of_every_size) {
    static const size_t sizes[] = {0, 1, 3, 4097, 65536, 65537, MIB + 3};
    duo d = duo_open(_i);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        pass(d.a, d.b, sizes[i], i);
        pass(d.b, d.a, sizes[i], 100 + i);
    }
    duo_close(&d);
}
END_TEST

/* 64 MiB in eight pieces, received in seven odd ones. */
START_TEST(a_large_vector) {
    const size_t n = 64 * MIB;
    uint8_t *out = alloc(n), *in = alloc(n);
    tn_iov send[8], recv[7];
    call s = CALL_INIT, r = CALL_INIT;
    duo d = duo_open(_i);
    size_t at = 0;

    fill(out, n, 7);
    memset(in, 0, n);
    for (size_t i = 0; i < 8; i++)
        send[i] = (tn_iov){out + i * 8 * MIB, 8 * MIB};
    for (size_t i = 0; i < 7; i++) {
        size_t piece = i < 6 ? 9 * MIB + 12345 * i + 1 : n - at;

        recv[i] = (tn_iov){in + at, piece};
        at += piece;
    }
    tn_tx_send(d.a, send, 8, LONG, on_done, &s);
    tn_tx_recv(d.b, recv, 7, LONG, on_done, &r);
    await_ok(&s);
    await_ok(&r);
    ck_assert(memcmp(in, out, n) == 0);
    duo_close(&d);
    free(out);
    free(in);
}
END_TEST

START_TEST(pieces_may_be_empty) {
    uint8_t out[10], in[10] = {0};
    tn_iov send[] = {{NULL, 0}, {out, 3}, {NULL, 0}, {out + 3, 7}, {NULL, 0}};
    tn_iov recv[] = {{in, 1}, {NULL, 0}, {in + 1, 8}, {in + 9, 1}, {NULL, 0}}, none[] = {{NULL, 0}, {NULL, 0}};
    call s = CALL_INIT, r = CALL_INIT;
    duo d = duo_open(_i);

    fill(out, sizeof(out), 1);
    tn_tx_send(d.a, none, 2, LONG, on_done, &s);
    await_ok(&s);
    tn_tx_recv(d.b, none, 2, LONG, on_done, &r);
    await_ok(&r);
    tn_tx_recv(d.b, recv, 5, LONG, on_done, &r);
    tn_tx_send(d.a, send, 5, LONG, on_done, &s);
    await_ok(&s);
    await_ok(&r);
    ck_assert_mem_eq(in, out, sizeof(out));
    duo_close(&d);
}
END_TEST

START_TEST(both_directions_at_once) {
    enum { ROUNDS = 8 };
    const size_t n = 2 * MIB + 1;
    uint8_t *out = alloc(n), *in[2] = {alloc(n), alloc(n)};
    tn_frame f = {.type = 3, .flags = 0x8001, .tag = 0xdeadbeef, .id = UINT64_MAX - 1, .size = n}, got[2];
    tn_iov send[] = {{out, 1}, {out + 1, n - 1}};
    duo d = duo_open(_i);
    tn_tx_conn *end[2] = {d.a, d.b};
    call s[2] = {CALL_INIT, CALL_INIT}, r[2] = {CALL_INIT, CALL_INIT};

    fill(out, n, 3);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 2; i++) {
            tn_frame_send(end[i], &f, send, 2, LONG, on_done, &s[i]);
            tn_frame_recv(end[i], &got[i], n, LONG, on_done, &r[i]);
        }
        for (int i = 0; i < 2; i++) {
            tn_iov recv = {in[i], n};

            await_ok(&r[i]);
            ck_assert(got[i].type == f.type && got[i].flags == f.flags && got[i].tag == f.tag && got[i].id == f.id);
            ck_assert(got[i].size == n);
            tn_tx_recv(end[i], &recv, 1, LONG, on_done, &r[i]);
        }
        for (int i = 0; i < 2; i++) {
            await_ok(&r[i]);
            await_ok(&s[i]);
            ck_assert(memcmp(in[i], out, n) == 0);
            memset(in[i], 0, n);
        }
    }
    duo_close(&d);
    free(out);
    free(in[0]);
    free(in[1]);
}
END_TEST

/* Operations that are started by the callback of the one before. */
typedef struct ball {
    tn_tx_conn *conn;
    int left;
    uint8_t byte;
    call end;
} ball;

static void ball_caught(void *arg, const tn_err *err);

static void ball_thrown(void *arg, const tn_err *err) {
    ball *x = arg;
    tn_iov iov = {&x->byte, 1};

    if (err->code != TN_OK || x->left == 0)
        on_done(&x->end, err);
    else
        tn_tx_recv(x->conn, &iov, 1, LONG, ball_caught, x);
}

static void ball_caught(void *arg, const tn_err *err) {
    ball *x = arg;
    tn_iov iov = {&x->byte, 1};

    if (err->code != TN_OK) {
        on_done(&x->end, err);
        return;
    }
    x->left--;
    x->byte++;
    tn_tx_send(x->conn, &iov, 1, LONG, ball_thrown, x);
}

START_TEST(callbacks_may_go_on) {
    enum { THROWS = 500 };
    duo d = duo_open(_i);
    ball a = {.conn = d.a, .left = THROWS, .end = CALL_INIT}, b = {.conn = d.b, .left = THROWS, .end = CALL_INIT};
    tn_err none = TN_ERR_INIT;
    tn_iov last = {&a.byte, 1};

    ball_thrown(&a, &none); /* begins by receiving */
    ball_caught(&b, &none); /* begins by sending */
    await_ok(&a.end);
    await_ok(&b.end);
    ok(tn_tx_recv_wait(d.b, &last, 1, LONG, &none), &none);
    ck_assert_uint_eq(a.byte, (uint8_t)(2 * THROWS));
    duo_close(&d);
}
END_TEST

/* ---- the end of connections ---- */

START_TEST(refused_where_nobody_listens) {
    tn_tx_listener *l = must_listen(_i);
    char *url = strdup(tn_tx_listener_url(l));
    tn_tx_conn *c = NULL;
    tn_err e = TN_ERR_INIT;

    tn_tx_listener_free(l);
    ck_assert_int_eq(tn_tx_dial_wait(&c, url, _i == TLS ? &client_opts : NULL, LONG, &e), TN_EPEER);
    ck_assert_ptr_null(c);
    ck_assert_ptr_nonnull(strstr(e.msg, url));
    free(url);
}
END_TEST

START_TEST(close_ends_a_receive) {
    uint8_t byte;
    tn_iov iov = {&byte, 1};
    call r = CALL_INIT, s = CALL_INIT;
    duo d = duo_open(_i);

    tn_tx_recv(d.a, &iov, 1, TN_FOREVER, on_done, &r);
    tn_tx_close(d.a);
    ck_assert_int_eq(await(&r), TN_ECANCELED);
    tn_tx_send(d.a, &iov, 1, TN_FOREVER, on_done, &s);
    ck_assert_int_eq(await(&s), TN_ECANCELED);
    tn_tx_recv(d.b, &iov, 1, TN_FOREVER, on_done, &r);
    ck_assert_int_eq(await(&r), TN_EPEER);
    tn_tx_send(d.b, &iov, 1, TN_FOREVER, on_done, &s);
    ck_assert_int_eq(await(&s), TN_EPEER);
    duo_close(&d);
}
END_TEST

/* To a peer that does not read: more than any buffer between the two takes. */
START_TEST(close_ends_a_send) {
    const size_t n = 64 * MIB;
    tn_iov iov = {calloc(1, n), n};
    call s = CALL_INIT;
    duo d = duo_open(_i);

    pass(d.a, d.b, 1, 1);
    tn_tx_send(d.a, &iov, 1, TN_FOREVER, on_done, &s);
    tn_tx_close(d.a);
    ck_assert_int_eq(await(&s), TN_ECANCELED);
    duo_close(&d);
    free(iov.p);
}
END_TEST

START_TEST(the_other_end_closes) {
    const size_t n = 64 * MIB;
    uint8_t byte;
    tn_iov one = {&byte, 1}, many = {calloc(1, n), n};
    call r = CALL_INIT, s = CALL_INIT;
    duo d = duo_open(_i);

    pass(d.a, d.b, 1, 1);
    tn_tx_recv(d.a, &one, 1, TN_FOREVER, on_done, &r);
    tn_tx_send(d.a, &many, 1, TN_FOREVER, on_done, &s);
    tn_tx_conn_unref(d.b);
    d.b = NULL;
    ck_assert_int_eq(await(&r), TN_EPEER);
    ck_assert_int_eq(await(&s), TN_EPEER);
    duo_close(&d);
    free(many.p);
}
END_TEST

/* What was sent before the end still arrives, and then the end. */
START_TEST(the_last_words_arrive) {
    uint8_t word[5] = "word", got[5] = "";
    tn_iov send = {word, 5}, recv = {got, 5};
    tn_err e = TN_ERR_INIT;
    duo d = duo_open(_i);

    pass(d.a, d.b, 1, 1);
    ok(tn_tx_send_wait(d.a, &send, 1, LONG, &e), &e);
    tn_tx_close(d.a);
    ok(tn_tx_recv_wait(d.b, &recv, 1, LONG, &e), &e);
    ck_assert_str_eq((const char *)got, "word");
    ck_assert_int_eq(tn_tx_recv_wait(d.b, &recv, 1, LONG, &e), TN_EPEER);
    duo_close(&d);
}
END_TEST

START_TEST(a_receive_times_out) {
    uint8_t buf[2], byte = 9;
    tn_iov two = {buf, 2}, one = {&byte, 1};
    tn_err e = TN_ERR_INIT;
    call s = CALL_INIT, r = CALL_INIT;
    duo d = duo_open(_i);

    pass(d.a, d.b, 1, 1);
    tn_tx_recv(d.a, &two, 1, 30 * TN_MS, on_done, &r); /* half of it comes */
    tn_tx_send(d.b, &one, 1, LONG, on_done, &s);
    await_ok(&s);
    ck_assert_int_eq(await(&r), TN_ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(r.err.msg, tn_tx_conn_peer(d.a)));
    ck_assert_int_eq(tn_tx_send_wait(d.a, &one, 1, LONG, &e), TN_ETIMEDOUT); /* of no more use */
    duo_close(&d);
}
END_TEST

/* Also before any byte came: with TLS both wait for a handshake that the peer never answers. */
START_TEST(silence_times_out) {
    const size_t n = 64 * MIB;
    uint8_t byte;
    tn_iov one = {&byte, 1}, many = {calloc(1, n), n};
    tn_err e = TN_ERR_INIT;
    duo d = duo_open(_i), d2;

    ck_assert_int_eq(tn_tx_send_wait(d.a, &many, 1, 30 * TN_MS, &e), TN_ETIMEDOUT);
    d2.l = NULL;
    d2.a = must_dial(_i, d.l);
    d2.b = must_accept(d.l);
    ck_assert_int_eq(tn_tx_recv_wait(d2.b, &one, 1, 30 * TN_MS, &e), TN_ETIMEDOUT);
    tn_tx_conn_unref(d2.a);
    d2.a = must_dial(_i, d.l);
    ck_assert_int_eq(tn_tx_recv_wait(d2.a, &one, 1, 0, &e), TN_ETIMEDOUT);
    duo_close(&d2);
    duo_close(&d);
    free(many.p);
}
END_TEST

typedef struct dropper {
    duo d;
    call done;
} dropper;

static void unref_conn(void *arg, const tn_err *err) {
    dropper *x = arg;

    tn_tx_conn_unref(x->d.a);
    x->d.a = NULL;
    on_done(&x->done, err);
}

START_TEST(the_callback_may_drop_the_last_reference) {
    uint8_t out = 1, in, more;
    tn_iov send = {&out, 1}, recv = {&in, 1}, next = {&more, 1};
    call s = CALL_INIT, r = CALL_INIT;
    dropper x = {.d = duo_open(_i), .done = CALL_INIT};

    tn_tx_recv(x.d.a, &recv, 1, LONG, unref_conn, &x);
    tn_tx_send(x.d.b, &send, 1, LONG, on_done, &s);
    await_ok(&s);
    tn_tx_recv(x.d.b, &next, 1, LONG, on_done, &r);
    ck_assert_int_eq(await(&r), TN_EPEER);
    await_ok(&x.done);
    duo_close(&x.d);
}
END_TEST

START_TEST(one_operation_a_direction) {
    uint8_t in[2] = {0}, byte = 7;
    tn_iov first = {&in[0], 1}, second = {&in[1], 1}, out = {&byte, 1};
    call r = CALL_INIT, r2 = CALL_INIT;
    duo d = duo_open(_i);

    tn_tx_recv(d.a, &first, 1, LONG, on_done, &r);
    tn_tx_recv(d.a, &second, 1, LONG, on_done, &r2);
    ck_assert_int_eq(await(&r2), TN_EBUSY);
    tn_tx_send(d.b, &out, 1, LONG, on_done, &r2); /* the first is still good */
    await_ok(&r2);
    await_ok(&r);
    duo_close(&d);
}
END_TEST

/* What the kernel was told, of exactly one of this process's sockets. */
START_TEST(keep_alive) {
    duo d = duo_open(_i);
    tn_err e = TN_ERR_INIT;
    tn_code code = tn_tx_keepalive(d.a, 3, 2, 4, &e);
    int fd, found = 0;

    if (_i != TCP && _i != TLS) {
        ck_assert_int_eq(code, TN_EUNSUPPORTED);
    } else {
        ok(code, &e);
        for (fd = 0; fd < 1024; fd++) {
            int idle = 0, interval = 0, count = 0, unanswered = 0;
            socklen_t n = sizeof(int);

            if (getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &n) == 0 &&
                getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, &n) == 0 &&
                getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, &n) == 0 &&
                getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, &n) == 0)
                found += idle == 3 && interval == 2 && count == 4 && unanswered == 11000;
        }
        ck_assert_int_eq(found, 1);
    }
    tn_tx_close(d.a);
    ck_assert_int_ne(tn_tx_keepalive(d.a, 3, 2, 4, &e), TN_OK);
    duo_close(&d);
}
END_TEST

/* ---- frames ---- */

static void send_raw(tn_tx_conn *c, const void *p, size_t n) {
    uint8_t copy[64];
    tn_iov iov = {copy, n};
    tn_err e = TN_ERR_INIT;

    memcpy(copy, p, n);
    ok(tn_tx_send_wait(c, &iov, 1, LONG, &e), &e);
}

START_TEST(half_a_frame) {
    tn_frame f = {.type = 1}, got;
    uint8_t header[TN_FRAME_BYTES];
    call r = CALL_INIT;
    duo d = duo_open(_i);

    tni_frame_encode(header, &f);
    tn_frame_recv(d.b, &got, 0, LONG, on_done, &r);
    send_raw(d.a, header, 17);
    tn_tx_close(d.a);
    ck_assert_int_eq(await(&r), TN_EPEER);
    duo_close(&d);
}
END_TEST

START_TEST(bad_frames) {
    static const struct {
        size_t at;
        uint8_t value;
        tn_code code;
    } cases[] = {
        {0, 't', TN_EPROTO}, {3, '2', TN_EPROTO}, {4, 2, TN_EVERSION}, {12, 1, TN_EPROTO}, {15, 1, TN_EPROTO},
        {24, 101, TN_EPROTO}, {31, 0xff, TN_EPROTO}, {24, 100, TN_OK},
    };
    tn_tx_listener *l = must_listen(_i);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tn_frame f = {.type = 1}, got;
        uint8_t header[TN_FRAME_BYTES];
        call r = CALL_INIT;
        duo d = {.a = must_dial(_i, l), .b = must_accept(l)};

        tni_frame_encode(header, &f);
        header[cases[i].at] = cases[i].value;
        tn_frame_recv(d.b, &got, 100, LONG, on_done, &r);
        send_raw(d.a, header, sizeof(header));
        ck_assert_int_eq(await(&r), cases[i].code);
        duo_close(&d);
    }
    tn_tx_listener_free(l);
}
END_TEST

/* ---- listeners and dialers ---- */

START_TEST(the_real_port) {
    tn_tx_listener *l = must_listen(_i);
    tn_err e = TN_ERR_INIT;

    ok(tn_tx_url_check(tn_tx_listener_url(l), &e), &e);
    if (_i == TCP || _i == TLS)
        ck_assert_str_ne(strrchr(tn_tx_listener_url(l), ':'), ":0");
    else
        ck_assert_str_eq(tn_tx_listener_url(l), listen_url(_i));
    tn_tx_listener_free(l);
}
END_TEST

START_TEST(an_address_in_use) {
    tn_tx_listener *l = must_listen(_i), *l2 = NULL;
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_tx_listen(&l2, tn_tx_listener_url(l), &server_opts, &e), TN_EBUSY);
    ck_assert_ptr_null(l2);
    ck_assert_ptr_nonnull(strstr(e.msg, tn_tx_listener_url(l)));
    ck_assert_ptr_nonnull(strstr(e.msg, "in use"));
    tn_tx_conn_unref(must_dial(_i, l)); /* the first one still works */
    tn_tx_conn_unref(must_accept(l));
    tn_tx_listener_free(l);
}
END_TEST

START_TEST(close_ends_an_accept) {
    tn_tx_listener *l = must_listen(_i);
    call a = CALL_INIT, a2 = CALL_INIT;

    tn_tx_accept(l, on_conn, &a);
    tn_tx_accept(l, on_conn, &a2);
    ck_assert_int_eq(await(&a2), TN_EBUSY);
    tn_tx_listener_close(l);
    ck_assert_int_eq(await(&a), TN_ECANCELED);
    ck_assert_ptr_null(a.conn);
    tn_tx_accept(l, on_conn, &a);
    ck_assert_int_eq(await(&a), TN_ECANCELED);
    tn_tx_listener_free(l);

    l = must_listen(_i); /* and free alone does it too, before it returns */
    tn_tx_accept(l, on_conn, &a);
    tn_tx_listener_free(l);
    ck_assert_int_eq(a.done, 1);
    ck_assert_int_eq(a.err.code, TN_ECANCELED);
}
END_TEST

START_TEST(an_accept_times_out) {
    tn_tx_listener *l = must_listen(_i);
    tn_tx_conn *c = NULL, *none = NULL;
    tn_err e = TN_ERR_INIT;

    ck_assert_int_eq(tn_tx_accept_wait(l, &none, 20 * TN_MS, &e), TN_ETIMEDOUT);
    ck_assert_ptr_null(none);
    c = must_dial(_i, l); /* nobody took it away */
    tn_tx_conn_unref(must_accept(l));
    tn_tx_conn_unref(c);
    tn_tx_listener_free(l);
}
END_TEST

START_TEST(a_dialer_dials_again) {
    tn_tx_listener *l = must_listen(_i);
    tn_tx_dialer *d = NULL;
    call c = CALL_INIT;
    tn_err e = TN_ERR_INIT;

    ok(tn_tx_dialer_new(&d, tn_tx_listener_url(l), &client_opts, &e), &e);
    for (int i = 0; i < 3; i++) {
        duo ends = {.l = NULL};

        tn_tx_dial(d, LONG, on_conn, &c);
        await_ok(&c);
        ends.a = c.conn;
        ends.b = must_accept(l);
        pass(ends.a, ends.b, 1000, 1);
        duo_close(&ends);
    }
    tn_tx_dialer_close(d);
    tn_tx_dial(d, LONG, on_conn, &c);
    ck_assert_int_eq(await(&c), TN_ECANCELED);
    tn_tx_dialer_free(d);
    tn_tx_listener_free(l);
}
END_TEST

static int threads_now(void) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    int n = -1;

    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, "Threads:", 8) == 0)
            n = (int)strtol(line + 8, NULL, 10);
    fclose(f);
    ck_assert_int_gt(n, 0);
    return n;
}

START_TEST(idle_connections_cost_no_thread) {
    enum { MANY = 200 };
    static tn_tx_conn *ends[MANY][2];
    static uint8_t bytes[MANY];
    static call waits[MANY];
    tn_tx_listener *l = must_listen(_i);
    int threads = 0;

    for (int i = 0; i < MANY; i++) {
        tn_iov iov = {&bytes[i], 1};

        waits[i] = (call)CALL_INIT;
        ends[i][0] = must_dial(_i, l);
        ends[i][1] = must_accept(l);
        pass(ends[i][0], ends[i][1], 10, 1);
        tn_tx_recv(ends[i][1], &iov, 1, LONG, on_done, &waits[i]);
        if (i == 0)
            threads = threads_now();
    }
    ck_assert_int_eq(threads_now(), threads);
    for (int i = 0; i < MANY; i++) {
        uint8_t b = (uint8_t)i;

        send_raw(ends[i][0], &b, 1);
        await_ok(&waits[i]);
        ck_assert_uint_eq(bytes[i], b);
        tn_tx_conn_unref(ends[i][0]);
        tn_tx_conn_unref(ends[i][1]);
    }
    tn_tx_listener_free(l);
}
END_TEST

START_TEST(a_forked_child_is_refused) {
    tn_tx_listener *l = must_listen(_i), *l2 = NULL;
    duo d = {.l = l, .a = must_dial(_i, l), .b = must_accept(l)};
    int status = 0;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        tn_err e = TN_ERR_INIT;
        uint8_t byte = 0;
        tn_iov iov = {&byte, 1};
        tn_tx_conn *c = NULL;
        bool good = tn_tx_listen(&l2, listen_url(_i), &server_opts, &e) == TN_EUNSUPPORTED && strstr(e.msg, "fork") != NULL;

        good = good && tn_tx_dial_wait(&c, tn_tx_listener_url(l), &client_opts, LONG, &e) == TN_EUNSUPPORTED;
        good = good && tn_tx_send_wait(d.a, &iov, 1, LONG, &e) == TN_EUNSUPPORTED;
        good = good && tn_tx_accept_wait(l, &c, LONG, &e) == TN_EUNSUPPORTED;
        duo_close(&d); /* harmless */
        _exit(good ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pass(d.a, d.b, 100, 1);
    duo_close(&d);
}
END_TEST

/* ---- TLS ---- */

/* Both ends try to use the connection; gives the codes of server and client. */
static void handshake(const tn_tx_opts *server, const tn_tx_opts *client, tn_err out[2]) {
    static const char url[] = "tls+tcp://127.0.0.1:0";
    uint8_t bytes[2] = {0, 0};
    tn_iov iov[2] = {{&bytes[0], 1}, {&bytes[1], 1}};
    call s = CALL_INIT, r = CALL_INIT;
    duo d = {.l = NULL};
    tn_err e = TN_ERR_INIT;

    ok(tn_tx_listen(&d.l, url, server, &e), &e);
    ok(tn_tx_dial_wait(&d.a, tn_tx_listener_url(d.l), client, LONG, &e), &e);
    d.b = must_accept(d.l);
    tn_tx_recv(d.b, &iov[1], 1, LONG, on_done, &r);
    tn_tx_send(d.a, &iov[0], 1, LONG, on_done, &s);
    await(&s);
    await(&r);
    out[0] = r.err;
    out[1] = s.err;
    duo_close(&d);
}

static bool refused(tn_code c) {
    return c == TN_EAUTH || c == TN_EPEER;
}

START_TEST(tls_good) {
    tn_err e[2];

    handshake(&server_opts, &client_opts, e);
    ok(e[0].code, &e[0]);
    ok(e[1].code, &e[1]);
}
END_TEST

START_TEST(tls_client_trusts_another_ca) {
    tn_tx_opts client = client_opts;
    tn_err e[2];

    client.ca = other_ca;
    handshake(&server_opts, &client, e);
    ck_assert_int_eq(e[1].code, TN_EAUTH);
    ck_assert_ptr_nonnull(strstr(e[1].msg, other_ca));
    ck_assert(refused(e[0].code));
    ck_assert_ptr_nonnull(strstr(e[0].msg, path_cert));
}
END_TEST

START_TEST(tls_client_of_another_ca) {
    const tn_tx_opts client = {.cert = other_cert, .key = other_key, .ca = path_ca};
    tn_err e[2];

    handshake(&server_opts, &client, e);
    ck_assert_int_eq(e[0].code, TN_EAUTH);
    ck_assert_ptr_nonnull(strstr(e[0].msg, path_ca));
    ck_assert(refused(e[1].code));
    ck_assert_ptr_nonnull(strstr(e[1].msg, other_cert));
}
END_TEST

START_TEST(tls_another_name) {
    tn_tx_opts client = client_opts;
    tn_err e[2];

    client.server_name = "elsewhere.example";
    handshake(&server_opts, &client, e);
    ck_assert_int_eq(e[1].code, TN_EAUTH);
    ck_assert_ptr_nonnull(strstr(e[1].msg, "elsewhere.example"));
    ck_assert(refused(e[0].code));
    client.server_name = "localhost";
    handshake(&server_opts, &client, e);
    ok(e[1].code, &e[1]);
}
END_TEST

START_TEST(tls_client_certificates_do_not_serve) {
    tn_err e[2];

    handshake(&client_opts, &client_opts, e);
    ck_assert_int_eq(e[1].code, TN_EAUTH);
    ck_assert(refused(e[0].code));
}
END_TEST

/* Whoever speaks no TLS, or begins it and falls silent, is one failed connection and nothing more. */
START_TEST(tls_garbage_does_not_harm_the_listener) {
    static const char hello[] = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
    tn_tx_listener *l = must_listen(TLS);
    char *plain = strdup(tn_tx_listener_url(l) + strlen("tls+"));
    uint8_t byte;
    tn_iov iov = {&byte, 1};
    tn_err e = TN_ERR_INIT;
    duo d = {.l = NULL};

    for (int i = 0; i < 2; i++) {
        static const uint8_t begun[] = {0x16, 0x03, 0x03, 0x01, 0x00, 0x01}; /* a handshake record that never ends */
        tn_tx_conn *c = NULL, *s;

        ok(tn_tx_dial_wait(&c, plain, NULL, LONG, &e), &e);
        s = must_accept(l);
        if (i == 0)
            send_raw(c, hello, sizeof(hello) - 1);
        else
            send_raw(c, begun, sizeof(begun));
        ck_assert_int_eq(tn_tx_recv_wait(s, &iov, 1, i == 0 ? LONG : 50 * TN_MS, &e), i == 0 ? TN_EAUTH : TN_ETIMEDOUT);
        tn_tx_conn_unref(c);
        tn_tx_conn_unref(s);
    }
    d.a = must_dial(TLS, l);
    d.b = must_accept(l);
    pass(d.a, d.b, 1000, 1);
    duo_close(&d);
    tn_tx_listener_free(l);
    free(plain);
}
END_TEST

START_TEST(tls_bad_files) {
    static const char text[] = "no PEM at all\n";
    char bad[64], old_cert[64], old_key[64];
    const char *hosts[] = {"localhost"};
    const tn_cert_request req = {.name = "old", .hosts = hosts, .nhosts = 1, .server = true, .days = 1};
    const tn_part part = {text, sizeof(text) - 1};
    tn_err e = TN_ERR_INIT;
    tn_tx_listener *l;
    tn_tx_dialer *d;
    const int64_t now = 1750000000; /* long past */
    struct {
        tn_tx_opts opts;
        tn_code code;
        const char *names;
    } cases[] = {
        {{.cert = path_cert, .key = path_client_key, .ca = path_ca}, TN_EAUTH, path_client_key},
        {{.cert = bad, .key = path_key, .ca = path_ca}, TN_EAUTH, bad},
        {{.cert = path_cert, .key = bad, .ca = path_ca}, TN_EAUTH, bad},
        {{.cert = path_cert, .key = path_key, .ca = bad}, TN_EAUTH, bad},
        {{.cert = old_cert, .key = old_key, .ca = path_ca}, TN_EAUTH, "expired"},
        {{.cert = "/nonexistent/c.pem", .key = path_key, .ca = path_ca}, TN_ENOTFOUND, "/nonexistent/c.pem"},
        {{.cert = path_cert, .key = path_key}, TN_EINVAL, "CA"},
    };

    snprintf(bad, sizeof(bad), "%s/bad.pem", dir);
    snprintf(old_cert, sizeof(old_cert), "%s/old.pem", dir);
    snprintf(old_key, sizeof(old_key), "%s/old.key", dir);
    ok(tn_file_write_atomic(bad, &part, 1, 0600, &e), &e);
    ok(tni_cert_issue(dir, &req, now, now + 1000, old_cert, old_key, NULL, &e), &e);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_int_eq(tn_tx_listen(&l, "tls+tcp://127.0.0.1:0", &cases[i].opts, &e), cases[i].code);
        ck_assert_ptr_null(l);
        ck_assert_msg(strstr(e.msg, cases[i].names) != NULL, "%s", e.msg);
        ck_assert_int_eq(tn_tx_dialer_new(&d, "tls+tcp://127.0.0.1:9", &cases[i].opts, &e), cases[i].code);
        ck_assert_ptr_null(d);
    }
    ck_assert_int_eq(tn_tx_listen(&l, "tls+tcp://127.0.0.1:0", NULL, &e), TN_EINVAL);
    unlink(bad);
    unlink(old_cert);
    unlink(old_key);
}
END_TEST

/* ---- main ---- */

static void make_certificates(void) {
    static const char *hosts[] = {"127.0.0.1", "localhost"};
    tn_cert_request server = {.name = "server", .hosts = hosts, .nhosts = 2, .server = true, .days = 2};
    tn_cert_request client = {.name = "client", .days = 2};
    char other[64];
    tn_err e = TN_ERR_INIT;
    tn_code code = tn_cert_init(dir, "test-ca", 3, &e);

    snprintf(other, sizeof(other), "%s/other", dir);
    snprintf(path_ca, sizeof(path_ca), "%s/ca.pem", dir);
    snprintf(path_cert, sizeof(path_cert), "%s/server.pem", dir);
    snprintf(path_key, sizeof(path_key), "%s/server.key", dir);
    snprintf(path_client, sizeof(path_client), "%s/client.pem", dir);
    snprintf(path_client_key, sizeof(path_client_key), "%s/client.key", dir);
    snprintf(other_ca, sizeof(other_ca), "%s/other/ca.pem", dir);
    snprintf(other_cert, sizeof(other_cert), "%s/other/client.pem", dir);
    snprintf(other_key, sizeof(other_key), "%s/other/client.key", dir);
    if (code == TN_OK)
        code = tn_cert_issue(dir, &server, path_cert, path_key, NULL, &e);
    if (code == TN_OK)
        code = tn_cert_issue(dir, &client, path_client, path_client_key, NULL, &e);
    if (code == TN_OK)
        code = tn_cert_init(other, "other-ca", 3, &e);
    if (code == TN_OK)
        code = tn_cert_issue(other, &client, other_cert, other_key, NULL, &e);
    if (code != TN_OK) {
        fprintf(stderr, "certificates: %s\n", e.msg);
        exit(EXIT_FAILURE);
    }
}

static void remove_certificates(void) {
    const char *files[] = {path_ca, path_cert, path_key, path_client, path_client_key, other_ca, other_cert, other_key};
    char path[64];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        unlink(files[i]);
    snprintf(path, sizeof(path), "%s/ca.key", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/other/ca.key", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/other", dir);
    rmdir(path);
    rmdir(dir);
}

int main(void) {
    Suite *s = suite_create("transport");
    TCase *each = tcase_create("every scheme"), *tls = tcase_create("tls");
    SRunner *r;
    int failed;

    if (mkdtemp(dir) == NULL)
        return EXIT_FAILURE;
    make_certificates();
    tcase_set_timeout(each, 120);
    tcase_set_timeout(tls, 120);
    suite_add_tcase(s, each);
    suite_add_tcase(s, tls);
#define EACH(test) tcase_add_loop_test(each, test, 0, SCHEMES)
    EACH(bytes_of_every_size);
    EACH(a_large_vector);
    EACH(pieces_may_be_empty);
    EACH(both_directions_at_once);
    EACH(callbacks_may_go_on);
    EACH(refused_where_nobody_listens);
    EACH(close_ends_a_receive);
    EACH(close_ends_a_send);
    EACH(the_other_end_closes);
    EACH(the_last_words_arrive);
    EACH(a_receive_times_out);
    EACH(silence_times_out);
    EACH(the_callback_may_drop_the_last_reference);
    EACH(one_operation_a_direction);
    EACH(keep_alive);
    EACH(half_a_frame);
    EACH(bad_frames);
    EACH(the_real_port);
    EACH(an_address_in_use);
    EACH(close_ends_an_accept);
    EACH(an_accept_times_out);
    EACH(a_dialer_dials_again);
    EACH(idle_connections_cost_no_thread);
    EACH(a_forked_child_is_refused);
#undef EACH
    tcase_add_test(tls, tls_good);
    tcase_add_test(tls, tls_client_trusts_another_ca);
    tcase_add_test(tls, tls_client_of_another_ca);
    tcase_add_test(tls, tls_another_name);
    tcase_add_test(tls, tls_client_certificates_do_not_serve);
    tcase_add_test(tls, tls_garbage_does_not_harm_the_listener);
    tcase_add_test(tls, tls_bad_files);
    r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    remove_certificates();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Blocking forms: the asynchronous ones and a latch on the caller's stack. The operation itself carries the deadline, so the
 * latch always opens. */
#include "transport/internal.h"

typedef struct latch {
    pthread_mutex_t lock;
    pthread_cond_t open;
    bool done;
    tn_tx_conn *conn;
    tn_err err;
} latch;

static void latch_init(latch *w) {
    *w = (latch){.done = false};
    pthread_mutex_init(&w->lock, NULL);
    tn_cond_init(&w->open);
}

static void got_conn(void *arg, tn_tx_conn *conn, const tn_err *err) {
    latch *w = arg;

    pthread_mutex_lock(&w->lock);
    w->conn = conn;
    w->err = *err;
    w->done = true;
    pthread_cond_signal(&w->open);
    pthread_mutex_unlock(&w->lock);
}

static void got_done(void *arg, const tn_err *err) {
    got_conn(arg, NULL, err);
}

static tn_code latch_wait(latch *w, tn_err *err) {
    tn_code code;

    pthread_mutex_lock(&w->lock);
    while (!w->done)
        pthread_cond_wait(&w->open, &w->lock);
    pthread_mutex_unlock(&w->lock);
    pthread_cond_destroy(&w->open);
    pthread_mutex_destroy(&w->lock);
    code = w->err.code;
    if (code != TN_OK && err != NULL)
        *err = w->err;
    return code;
}

tn_code tn_tx_dial_wait(tn_tx_conn **out, const char *url, const tn_tx_opts *opts, int64_t timeout_ns, tn_err *err) {
    tn_tx_dialer *d = NULL;
    latch w;
    tn_code code = tn_tx_dialer_new(&d, url, opts, err);

    *out = NULL;
    if (code != TN_OK)
        return code;
    latch_init(&w);
    tn_tx_dial(d, timeout_ns, got_conn, &w);
    code = latch_wait(&w, err);
    tn_tx_dialer_free(d);
    *out = w.conn;
    return code;
}

tn_code tn_tx_accept_wait(tn_tx_listener *l, tn_tx_conn **out, int64_t timeout_ns, tn_err *err) {
    latch w;
    tn_code code;

    latch_init(&w);
    tni_accept(l, timeout_ns, got_conn, &w);
    code = latch_wait(&w, err);
    *out = w.conn;
    return code;
}

tn_code tn_tx_send_wait(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_err *err) {
    latch w;

    latch_init(&w);
    tn_tx_send(c, iov, n, timeout_ns, got_done, &w);
    return latch_wait(&w, err);
}

tn_code tn_tx_recv_wait(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_err *err) {
    latch w;

    latch_init(&w);
    tn_tx_recv(c, iov, n, timeout_ns, got_done, &w);
    return latch_wait(&w, err);
}

tn_code tn_frame_send_wait(tn_tx_conn *c, const tn_frame *f, const tn_iov *body, int n, int64_t timeout_ns, tn_err *err) {
    latch w;

    latch_init(&w);
    tn_frame_send(c, f, body, n, timeout_ns, got_done, &w);
    return latch_wait(&w, err);
}

tn_code tn_frame_recv_wait(tn_tx_conn *c, tn_frame *f, uint64_t max_size, int64_t timeout_ns, tn_err *err) {
    latch w;

    latch_init(&w);
    tn_frame_recv(c, f, max_size, timeout_ns, got_done, &w);
    return latch_wait(&w, err);
}

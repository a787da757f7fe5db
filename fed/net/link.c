/* A connection of a client, with cancellable waits: see internal.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fed/net/internal.h"

tn_code tni_chan_init(tni_chan *l, const char *url, const tn_tx_opts *opts, tn_err *err) {
    memset(l, 0, sizeof(*l));
    pthread_mutex_init(&l->mutex, NULL);
    tn_cond_init(&l->wake);
    l->dial.link = l->send.link = l->recv.link = l;
    return tn_tx_dialer_new(&l->dialer, url, opts, err);
}

void tni_chan_release(tni_chan *l) {
    tni_chan_drop(l);
    if (l->dialer != NULL)
        tn_tx_dialer_free(l->dialer);
    l->dialer = NULL;
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->mutex);
}

/* ---- Operations: begun by the client's thread, finished by the transport's ---- */

static void op_begin(tni_op *op) {
    pthread_mutex_lock(&op->link->mutex);
    assert(!op->busy);
    op->busy = true;
    op->done = false;
    pthread_mutex_unlock(&op->link->mutex);
}

static void op_done(void *arg, const tn_err *err) {
    tni_op *op = arg;
    tni_chan *l = op->link;

    pthread_mutex_lock(&l->mutex);
    op->err = *err;
    op->done = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->mutex);
}

static void dial_done(void *arg, tn_tx_conn *conn, const tn_err *err) {
    tni_chan *l = arg;

    pthread_mutex_lock(&l->mutex);
    l->dialed = conn;
    pthread_mutex_unlock(&l->mutex);
    op_done(&l->dial, err);
}

static tn_code cancelled(tn_err *err) { return tn_fail(err, TN_ECANCELED, "the client was cancelled"); }

/* Waits for an operation; TN_ETIMEDOUT at the deadline leaves it under way. The transport ends what was
 * begun, by its own time-out or because the connection was closed, so TN_FOREVER is no wait for ever. */
static tn_code op_wait(tni_op *op, int64_t deadline, tn_err *err) {
    tni_chan *l = op->link;
    tn_code code = TN_OK;

    pthread_mutex_lock(&l->mutex);
    while (!op->done && code == TN_OK)
        code = tn_cond_wait_until(&l->wake, &l->mutex, deadline);
    if (op->done) {
        op->busy = false;
        code = op->err.code;
        if (code != TN_OK && err != NULL)
            *err = op->err;
        if (l->cancelled)
            code = cancelled(err);
    } else {
        code = l->cancelled ? cancelled(err) : tn_fail(err, TN_ETIMEDOUT, "nothing came in time");
    }
    pthread_mutex_unlock(&l->mutex);
    return code;
}

void tni_chan_cancel(tni_chan *l) {
    tn_tx_conn *conn;

    pthread_mutex_lock(&l->mutex);
    l->cancelled = true;
    conn = l->conn != NULL ? tn_tx_conn_ref(l->conn) : NULL;
    pthread_cond_broadcast(&l->wake);
    pthread_mutex_unlock(&l->mutex);
    tn_tx_dialer_close(l->dialer);
    if (conn != NULL) {
        tn_tx_close(conn);
        tn_tx_conn_unref(conn);
    }
}

bool tni_chan_cancelled(tni_chan *l) {
    bool yes;

    pthread_mutex_lock(&l->mutex);
    yes = l->cancelled;
    pthread_mutex_unlock(&l->mutex);
    return yes;
}

tn_code tni_chan_pause(tni_chan *l, int64_t until, tn_err *err) {
    tn_code code = TN_OK;

    pthread_mutex_lock(&l->mutex);
    while (!l->cancelled && code == TN_OK)
        code = tn_cond_wait_until(&l->wake, &l->mutex, until);
    code = l->cancelled ? cancelled(err) : TN_OK;
    pthread_mutex_unlock(&l->mutex);
    return code;
}

tn_code tni_chan_dial(tni_chan *l, int64_t timeout_ns, tn_err *err) {
    tn_code code;

    assert(l->conn == NULL);
    if (tni_chan_cancelled(l))
        return cancelled(err);
    op_begin(&l->dial);
    tn_tx_dial(l->dialer, timeout_ns, dial_done, l);
    code = op_wait(&l->dial, TN_FOREVER, err);
    pthread_mutex_lock(&l->mutex);
    l->conn = l->dialed;
    l->dialed = NULL;
    if (l->cancelled) /* whoever cancels from now on finds the connection and closes it */
        code = cancelled(err);
    pthread_mutex_unlock(&l->mutex);
    if (code != TN_OK)
        tni_chan_drop(l);
    return code;
}

void tni_chan_drop(tni_chan *l) {
    tn_tx_conn *conn;

    pthread_mutex_lock(&l->mutex);
    conn = l->conn;
    l->conn = NULL;
    pthread_mutex_unlock(&l->mutex);
    if (conn == NULL)
        return;
    tn_tx_close(conn);
    if (l->recv.busy)
        op_wait(&l->recv, TN_FOREVER, NULL);
    tn_tx_conn_unref(conn);
}

tn_code tni_chan_send(tni_chan *l, tn_frame *f, const tn_iov *body, int n, int64_t timeout_ns, tn_err *err) {
    tn_code code;

    f->size = 0;
    for (int i = 0; i < n; i++)
        f->size += body[i].n;
    op_begin(&l->send);
    tn_frame_send(l->conn, f, body, n, timeout_ns, op_done, &l->send);
    code = op_wait(&l->send, TN_FOREVER, err);
    if (code == TN_OK)
        atomic_fetch_add_explicit(&l->sent, TN_FRAME_BYTES + f->size, memory_order_relaxed);
    return code;
}

tn_code tni_chan_header(tni_chan *l, int64_t deadline, tn_frame *out, tn_err *err) {
    tn_code code;

    if (!l->recv.busy) {
        op_begin(&l->recv);
        tn_frame_recv(l->conn, &l->in, TN_MSG_MAX_META, TN_FOREVER, op_done, &l->recv);
    }
    code = op_wait(&l->recv, deadline, err);
    if (code != TN_OK)
        return code;
    *out = l->in;
    atomic_fetch_add_explicit(&l->received, TN_FRAME_BYTES, memory_order_relaxed);
    return TN_OK;
}

tn_code tni_chan_body(tni_chan *l, void *p, size_t n, tn_err *err) {
    tn_iov iov = {p, n};
    tn_code code;

    if (n == 0)
        return TN_OK;
    op_begin(&l->recv);
    tn_tx_recv(l->conn, &iov, 1, TNI_PROGRESS_NS, op_done, &l->recv);
    code = op_wait(&l->recv, TN_FOREVER, err);
    if (code == TN_OK)
        atomic_fetch_add_explicit(&l->received, n, memory_order_relaxed);
    return code;
}

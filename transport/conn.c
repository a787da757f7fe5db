/* Connections: what is the same for all schemes.
 *
 * Each direction has one operation at a time. It holds a reference, ends exactly once in tni_op_done, and its callback
 * runs there. The first failure of either direction takes the connection down: the stream is closed, so that the other
 * direction ends too, and every later operation is refused with that first failure. What is refused is told through a task
 * of the loop, never inside the call: the caller may hold a lock that its callback takes. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/internal.h"

typedef struct refusal {
    tni_task task;
    tn_tx_done fn;
    void *arg;
    tn_err err;
} refusal;

static void refusal_run(void *arg) {
    refusal *r = arg;

    r->fn(r->arg, &r->err);
    free(r);
}

static void refuse(tn_tx_done fn, void *arg, const tn_err *err) {
    refusal *r = tni_loop_forked() ? NULL : malloc(sizeof(*r));

    if (r == NULL) { /* No thread, or no memory, to tell it later. */
        fn(arg, err);
        return;
    }
    *r = (refusal){.task = {.run = refusal_run, .arg = r}, .fn = fn, .arg = arg, .err = *err};
    tni_loop_post(&r->task);
}

/* Locked. */
static void take_down(tn_tx_conn *c) {
    if (!c->down) {
        c->down = true;
        c->ops->close(c);
    }
}

static void expire(tn_tx_conn *c, int dir) {
    pthread_mutex_lock(&c->lock);
    if (c->op[dir].busy && !c->down) {
        c->op[dir].timed_out = true;
        take_down(c);
    }
    pthread_mutex_unlock(&c->lock);
}

static void expire_send(void *arg) {
    expire(arg, TNI_SEND);
}

static void expire_recv(void *arg) {
    expire(arg, TNI_RECV);
}

static void empty_sent(void *arg) {
    tni_op_done(arg, TNI_SEND, NULL);
}

static void empty_received(void *arg) {
    tni_op_done(arg, TNI_RECV, NULL);
}

tn_tx_conn *tni_conn_new(const tni_conn_ops *ops, void *impl, const char *peer) {
    tn_tx_conn *c = calloc(1, sizeof(*c));

    if (c == NULL)
        return NULL;
    c->ops = ops;
    c->impl = impl;
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->lock, NULL);
    c->op[TNI_SEND].timer = (tni_timer){.fire = expire_send, .arg = c};
    c->op[TNI_RECV].timer = (tni_timer){.fire = expire_recv, .arg = c};
    snprintf(c->peer, sizeof(c->peer), "%s", peer);
    return c;
}

void tni_conn_free(tn_tx_conn *c) {
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void reap(void *arg) {
    tn_tx_conn *c = arg;

    c->ops->release(c);
    tni_conn_free(c);
}

tn_tx_conn *tn_tx_conn_ref(tn_tx_conn *c) {
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void tn_tx_conn_unref(tn_tx_conn *c) {
    if (c == NULL || tni_loop_forked() || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&c->lock);
    take_down(c);
    pthread_mutex_unlock(&c->lock);
    c->reap = (tni_task){.run = reap, .arg = c};
    tni_loop_post(&c->reap);
}

void tn_tx_close(tn_tx_conn *c) {
    if (tni_loop_forked())
        return;
    pthread_mutex_lock(&c->lock);
    c->closed = true;
    if (c->failed.code == TN_OK)
        tn_fail(&c->failed, TN_ECANCELED, "the connection with %s was closed here", c->peer);
    take_down(c);
    pthread_mutex_unlock(&c->lock);
}

const char *tn_tx_conn_peer(const tn_tx_conn *c) {
    return c->peer;
}

void tni_op_advance(tni_op *op, size_t n) {
    int gone = 0;

    for (; gone < op->n && n >= op->iov[gone].n; gone++)
        n -= op->iov[gone].n;
    op->n -= gone;
    memmove(op->iov, op->iov + gone, (size_t)op->n * sizeof(op->iov[0]));
    if (n > 0) {
        assert(op->n > 0);
        op->iov[0].p = (uint8_t *)op->iov[0].p + n;
        op->iov[0].n -= n;
    }
}

static uint64_t bytes_left(const tni_op *op) {
    uint64_t n = 0;

    for (int i = 0; i < op->n; i++)
        n += op->iov[i].n;
    return n;
}

/* Fills in what the operation is about. Locked. */
static void describe(tn_tx_conn *c, int dir, const tn_frame *send, tn_frame *recv, uint64_t max_size, const tn_iov *iov,
                     int n) {
    tni_op *op = &c->op[dir];

    op->n = 0;
    op->timed_out = false;
    op->frame_out = recv;
    op->max_size = max_size;
    if (send != NULL || recv != NULL)
        op->iov[op->n++] = (tn_iov){op->header, TN_FRAME_BYTES};
    if (send != NULL)
        tni_frame_encode(op->header, send);
    for (int i = 0; i < n; i++)
        if (iov[i].n > 0)
            op->iov[op->n++] = iov[i];
    op->total = bytes_left(op);
    assert(send == NULL || op->total == TN_FRAME_BYTES + send->size);
}

void tni_op_start(tn_tx_conn *c, int dir, const tn_frame *send, tn_frame *recv, uint64_t max_size, const tn_iov *iov,
                  int n, int64_t timeout_ns, tn_tx_done fn, void *arg) {
    tni_op *op = &c->op[dir];
    tn_err e = TN_ERR_INIT;

    assert(n >= 0 && n <= TN_TX_MAX_IOV - (send != NULL));
    if (tni_loop_enter(&e) != TN_OK) {
        fn(arg, &e);
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (op->busy) {
        tn_fail(&e, TN_EBUSY, "a %s %s is under way already", dir == TNI_SEND ? "send to" : "receive from", c->peer);
    } else if (c->down) {
        e = c->failed;
    } else {
        op->began = tn_now();
        op->timeout_ns = timeout_ns;
        if (tni_timer_set(&op->timer, tn_deadline_after(op->began, timeout_ns)) != TN_OK)
            tn_fail(&e, TN_ENOMEM, "%s: out of memory", c->peer);
    }
    if (e.code == TN_OK) {
        describe(c, dir, send, recv, max_size, iov, n);
        op->busy = true;
        op->fn = fn;
        op->arg = arg;
        tn_tx_conn_ref(c);
        if (op->n == 0) {
            op->task = (tni_task){.run = dir == TNI_SEND ? empty_sent : empty_received, .arg = c};
            tni_loop_post(&op->task);
        } else {
            c->ops->start(c, dir);
        }
    }
    pthread_mutex_unlock(&c->lock);
    if (e.code != TN_OK)
        refuse(fn, arg, &e);
}

/* Which failure an operation that failed with *e is to report. Locked. */
static void judge(const tn_tx_conn *c, int dir, tn_err *e) {
    const tni_op *op = &c->op[dir];
    const char *what = dir == TNI_SEND ? "send to" : "receive from";
    uint64_t moved = op->total - bytes_left(op);

    if (op->timed_out)
        tn_fail(e, TN_ETIMEDOUT, "%s %s: %llu of %llu bytes after %.1f s, the time-out", what, c->peer,
                (unsigned long long)moved, (unsigned long long)op->total, (double)op->timeout_ns / 1e9);
    else if (c->failed.code != TN_OK)
        *e = c->failed;
    else
        tn_ctx(e, "%s %s, after %llu of %llu bytes", what, c->peer, (unsigned long long)moved,
               (unsigned long long)op->total);
}

void tni_op_done(tn_tx_conn *c, int dir, const tn_err *err) {
    tni_op *op = &c->op[dir];
    tn_err e = TN_ERR_INIT;
    tn_tx_done fn;
    void *arg;

    tni_timer_cancel(&op->timer);
    if (err != NULL)
        e = *err;
    else if (op->frame_out != NULL)
        tni_frame_decode(op->frame_out, op->header, op->max_size, &e);
    pthread_mutex_lock(&c->lock);
    if (e.code != TN_OK) {
        judge(c, dir, &e);
        if (c->failed.code == TN_OK)
            c->failed = e;
        take_down(c);
    }
    fn = op->fn;
    arg = op->arg;
    op->busy = false;
    pthread_mutex_unlock(&c->lock);
    fn(arg, &e);
    tn_tx_conn_unref(c);
}

void tn_tx_send(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_tx_done fn, void *arg) {
    tni_op_start(c, TNI_SEND, NULL, NULL, 0, iov, n, timeout_ns, fn, arg);
}

void tn_tx_recv(tn_tx_conn *c, const tn_iov *iov, int n, int64_t timeout_ns, tn_tx_done fn, void *arg) {
    tni_op_start(c, TNI_RECV, NULL, NULL, 0, iov, n, timeout_ns, fn, arg);
}

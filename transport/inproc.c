/* inproc://name: two ends inside one process.
 *
 * A pair has a lock and two pipes, one a direction. A receive that meets a send is one copy from memory to memory; a send
 * that meets none leaves what fits in a ring of RING bytes, so that, as with sockets, a small message can be sent before
 * anyone receives. What ends is told through the loop, as any other callback. */
#include <stdlib.h>
#include <string.h>

#include "transport/internal.h"

enum { RING = 64 * 1024, BACKLOG = 128 };

static const tni_conn_ops conn_ops;

/* ---- pairs --------------------------------------------------------------------------------------------------------- */

typedef struct pair pair;

typedef struct end {
    pair *pair;
    int side;
    tn_tx_conn *conn;
    tni_op *pending[2];
    tn_code result[2];
    bool closed;
    uint8_t *ring; /* what this end has sent and the other not taken yet; made at first need */
    size_t head, len;
} end;

struct pair {
    pthread_mutex_t lock;
    int refs;
    end end[2];
};

static void finished(tn_tx_conn *c, int dir) {
    const end *e = c->impl;
    tn_err err = TN_ERR_INIT;

    if (e->result[dir] == TN_OK) {
        tni_op_done(c, dir, NULL);
        return;
    }
    tn_fail(&err, e->result[dir], e->result[dir] == TN_EPEER ? "the other end closed the connection" : "closed here");
    tni_op_done(c, dir, &err);
}

static void finished_send(void *arg) {
    finished(arg, TNI_SEND);
}

static void finished_recv(void *arg) {
    finished(arg, TNI_RECV);
}

/* All below: the pair's lock is held. */
static void finish(end *e, int dir, tn_code code) {
    tni_op *op = e->pending[dir];

    if (op == NULL)
        return;
    e->pending[dir] = NULL;
    e->result[dir] = code;
    op->task = (tni_task){.run = dir == TNI_SEND ? finished_send : finished_recv, .arg = e->conn};
    tni_loop_post(&op->task);
}

static void advance(end *e, int dir, size_t n) {
    tni_op_advance(e->pending[dir], n);
    if (e->pending[dir]->n == 0)
        finish(e, dir, TN_OK);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* One step from end a to end b; false when there is nothing to do. */
static bool step(end *a, end *b) {
    const tni_op *from = a->pending[TNI_SEND], *to = b->pending[TNI_RECV];
    size_t n;

    if (to != NULL && a->len > 0) {
        n = least(least(a->len, RING - a->head), to->iov[0].n);
        memcpy(to->iov[0].p, a->ring + a->head, n);
        a->head = (a->head + n) % RING;
        a->len -= n;
        advance(b, TNI_RECV, n);
        return true;
    }
    if (to != NULL && from != NULL) {
        n = least(from->iov[0].n, to->iov[0].n);
        memcpy(to->iov[0].p, from->iov[0].p, n);
        advance(a, TNI_SEND, n);
        advance(b, TNI_RECV, n);
        return true;
    }
    if (from != NULL && !b->closed && a->len < RING) {
        size_t at = (a->head + a->len) % RING;

        if (a->ring == NULL && (a->ring = malloc(RING)) == NULL)
            return false; /* Without a ring a send waits for its receive. */
        n = least(least(RING - a->len, RING - at), from->iov[0].n);
        memcpy(a->ring + at, from->iov[0].p, n);
        a->len += n;
        advance(a, TNI_SEND, n);
        return true;
    }
    return false;
}

static void move(end *a, end *b) {
    while (step(a, b))
        ;
    if (b->closed)
        finish(a, TNI_SEND, TN_EPEER);
    if (a->closed)
        finish(b, TNI_RECV, TN_EPEER);
}

static end *other(end *e) {
    return &e->pair->end[1 - e->side];
}

static void conn_start(tn_tx_conn *c, int dir) {
    end *e = c->impl;

    pthread_mutex_lock(&e->pair->lock);
    e->pending[dir] = &c->op[dir];
    if (dir == TNI_SEND)
        move(e, other(e));
    else
        move(other(e), e);
    pthread_mutex_unlock(&e->pair->lock);
}

static void conn_close(tn_tx_conn *c) {
    end *e = c->impl;

    pthread_mutex_lock(&e->pair->lock);
    e->closed = true;
    finish(e, TNI_SEND, TN_ECANCELED);
    finish(e, TNI_RECV, TN_ECANCELED);
    move(e, other(e));
    move(other(e), e);
    pthread_mutex_unlock(&e->pair->lock);
}

static void pair_free(pair *p) {
    pthread_mutex_destroy(&p->lock);
    free(p->end[0].ring);
    free(p->end[1].ring);
    free(p);
}

static void pair_unref(pair *p) {
    int left;

    pthread_mutex_lock(&p->lock);
    left = --p->refs;
    pthread_mutex_unlock(&p->lock);
    if (left == 0)
        pair_free(p);
}

static void conn_release(tn_tx_conn *c) {
    end *e = c->impl;

    pair_unref(e->pair);
}

static const tni_conn_ops conn_ops = {.start = conn_start, .close = conn_close, .release = conn_release};

/* Two connections with one reference each; false when out of memory. */
static bool pair_new(tn_tx_conn *out[2], const char *url) {
    pair *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return false;
    pthread_mutex_init(&p->lock, NULL);
    p->refs = 2;
    for (int i = 0; i < 2; i++) {
        p->end[i].pair = p;
        p->end[i].side = i;
        out[i] = p->end[i].conn = tni_conn_new(&conn_ops, &p->end[i], url);
    }
    if (out[0] != NULL && out[1] != NULL)
        return true;
    for (int i = 0; i < 2; i++) {
        if (out[i] != NULL)
            tni_conn_free(out[i]);
    }
    pair_free(p);
    return false;
}

/* ---- endpoints ----------------------------------------------------------------------------------------------------- */

typedef struct inproc_ep {
    tni_task task; /* ends the attempt under way */
    tn_tx_conn *ready;
    /* A listener's, under the registry's lock. */
    tni_ep *ep;
    struct inproc_ep *next;
    bool listed, waiting;
    tn_tx_conn *backlog[BACKLOG];
    size_t head, len;
} inproc_ep;

static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static inproc_ep *listeners;

static void ended(void *arg) {
    tni_ep *ep = arg;
    const inproc_ep *ie = ep->impl;
    tn_err err = TN_ERR_INIT;

    if (ie->ready == NULL)
        tn_fail(&err, TN_ECANCELED, "%s: cancelled", ep->url);
    tni_ep_done(ep, ie->ready, &err);
}

static void end_attempt(tni_ep *ep, tn_tx_conn *ready) {
    inproc_ep *ie = ep->impl;

    ie->ready = ready;
    ie->task = (tni_task){.run = ended, .arg = ep};
    tni_loop_post(&ie->task);
}

static inproc_ep *find(const char *name) {
    inproc_ep *l = listeners;

    while (l != NULL && strcmp(l->ep->at.host, name) != 0)
        l = l->next;
    return l;
}

static tn_code ep_open(tni_ep *ep, tn_err *err) {
    inproc_ep *ie = calloc(1, sizeof(*ie));
    tn_code code = TN_OK;

    ep->impl = ie;
    if (ie == NULL)
        return tn_fail(err, TN_ENOMEM, "%s: out of memory", ep->url);
    ie->ep = ep;
    if (!ep->listener)
        return TN_OK;
    pthread_mutex_lock(&registry);
    if (find(ep->at.host) != NULL) {
        code = tn_fail(err, TN_EBUSY, "%s is in use in this process: choose another name", ep->url);
    } else {
        ie->next = listeners;
        listeners = ie;
        ie->listed = true;
    }
    pthread_mutex_unlock(&registry);
    return code;
}

static void begin_accept(inproc_ep *l) {
    pthread_mutex_lock(&registry);
    if (l->len > 0) {
        end_attempt(l->ep, l->backlog[l->head]);
        l->head = (l->head + 1) % BACKLOG;
        l->len--;
    } else {
        l->waiting = true;
    }
    pthread_mutex_unlock(&registry);
}

static tn_code begin_dial(tni_ep *ep, tn_err *err) {
    tn_tx_conn *ends[2];
    tn_code code = TN_OK;
    inproc_ep *l;

    pthread_mutex_lock(&registry);
    l = find(ep->at.host);
    if (l == NULL) {
        code = tn_fail(err, TN_EPEER, "nothing listens at %s (connection refused)", ep->url);
    } else if (l->len == BACKLOG) {
        code = tn_fail(err, TN_EPEER, "dial %s: the listener has too many connections waiting", ep->url);
    } else if (!pair_new(ends, ep->url)) {
        code = tn_fail(err, TN_ENOMEM, "dial %s: out of memory", ep->url);
    } else {
        if (l->waiting)
            end_attempt(l->ep, ends[1]);
        else
            l->backlog[(l->head + l->len++) % BACKLOG] = ends[1];
        l->waiting = false;
        end_attempt(ep, ends[0]);
    }
    pthread_mutex_unlock(&registry);
    return code;
}

static tn_code ep_begin(tni_ep *ep, tn_err *err) {
    if (!ep->listener)
        return begin_dial(ep, err);
    begin_accept(ep->impl);
    return TN_OK;
}

static void ep_cancel(tni_ep *ep) {
    inproc_ep *ie = ep->impl;

    pthread_mutex_lock(&registry);
    if (ie->waiting) {
        ie->waiting = false;
        end_attempt(ep, NULL);
    }
    pthread_mutex_unlock(&registry);
}

static void ep_close(tni_ep *ep) {
    inproc_ep *ie = ep->impl;

    ep_cancel(ep);
    pthread_mutex_lock(&registry);
    for (inproc_ep **p = &listeners; ie->listed && *p != NULL; p = &(*p)->next) {
        if (*p == ie) {
            *p = ie->next;
            break;
        }
    }
    ie->listed = false;
    pthread_mutex_unlock(&registry);
    /* Nobody finds it any more. */
    for (; ie->len > 0; ie->len--, ie->head = (ie->head + 1) % BACKLOG)
        tn_tx_conn_unref(ie->backlog[ie->head]);
}

static void ep_release(tni_ep *ep) {
    free(ep->impl);
}

const tni_ep_ops tni_inproc_ops = {
    .open = ep_open, .begin = ep_begin, .cancel = ep_cancel, .close = ep_close, .release = ep_release};

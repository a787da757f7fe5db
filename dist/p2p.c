/* Point to point: a rendezvous driven by the readers of the TNI_P2P links and by the group's timer.
 *
 *   sender                            receiver
 *   RTS  id, tag, dtype, size   ->    matched with posted receives in order of issue, else kept
 *                               <-    CTS id          when a receive matches
 *   DATA id, bytes              ->    straight into the tensor (staged when it is strided)
 *   WITHDRAW id                 ->    the sender gives up before its data left
 *                               <-    DECLINE id      the sizes differ
 *
 * No bytes are accepted that no receive waits for, so a slow receiver costs 40 bytes a message, up to
 * MAX_RTS of a peer. Everything here runs under the group's lock. An operation whose work is done stays
 * until the transport has let go of its messages (`holds`). */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/wire.h"
#include "dist/internal.h"

#define MAX_RTS ((size_t)65536) /* unmatched, of one peer */

static void free_if_unused(tni_p2p *op) {
    if (op->fin != NULL || op->holds > 0)
        return;
    free(op->staging);
    free(op);
}

/* The operation is over: takes it off the list and has its work completed. */
static void over(tn_pg *g, tni_p2p *op, const tn_err *err) {
    tni_p2p **at = &g->p2p, *before = NULL;
    tni_finished *fin = op->fin;

    while (*at != op) {
        before = *at;
        at = &(*at)->next;
    }
    *at = op->next;
    if (g->p2p_tail == op)
        g->p2p_tail = before;
    if (err == NULL && !op->send && op->source != NULL)
        *op->source = op->peer;
    op->fin = NULL;
    tni_finish(g, fin, err);
    free_if_unused(op);
    pthread_cond_broadcast(&g->wake);
}

static void fail(tn_pg *g, tni_p2p *op, tn_code code, const char *why) {
    char peer[32] = "any rank";
    tn_err err;

    if (op->peer >= 0)
        snprintf(peer, sizeof(peer), "rank %d", op->peer);
    tn_fail(&err, code, "%s of %llu bytes %s %s with tag %lu in group '%s' failed after %.3f s: %.300s",
            op->send ? "send" : "receive", (unsigned long long)op->bytes, op->send ? "to" : "from", peer,
            (unsigned long)op->tag, g->name, (double)(tn_now() - op->issued) / 1e9, why);
    if (op->state == TNI_P_MOVING && op->holds > 0)
        op->err = err; /* the transport has the tensor: when it lets go */
    else
        over(g, op, &err);
}

static void post(tn_pg *g, tni_p2p *op, tni_msg *m, bool first) {
    tni_link *l = tni_link_of(g, op->peer, TNI_P2P);

    op->holds++;
    if (first)
        tni_send_first(l, m);
    else
        tni_send(l, m);
}

static void on_talk(tn_pg *g, tni_msg *m, const tn_err *err) {
    tni_p2p *op = m->arg;

    (void)g;
    (void)err; /* the link tells tni_p2p_lost */
    op->holds--;
    free_if_unused(op);
}

/* A frame without a body about this operation's message, in one of its two messages that is free. */
static void talk(tn_pg *g, tni_p2p *op, tni_msg *m, tni_type type, uint32_t tag) {
    if (tni_link_of(g, op->peer, TNI_P2P)->state != TNI_OPEN)
        return;
    *m = (tni_msg){.frame = {.type = (uint8_t)type, .tag = tag, .id = op->msg_id}, .fn = on_talk, .arg = op,
                   .control = true};
    post(g, op, m, true);
}

/* ---- Ends of a transfer ---- */

static void broken_off(tn_pg *g, tni_p2p *op) {
    char why[TNI_FAIL_TEXT];

    snprintf(why, sizeof(why), "rank %d %.300s", op->peer, tni_link_of(g, op->peer, TNI_P2P)->err.msg);
    fail(g, op, TN_EPEER, why);
}

static void on_data_sent(tn_pg *g, tni_msg *m, const tn_err *err) {
    tni_p2p *op = m->arg;

    op->holds--;
    if (op->fin == NULL)
        free_if_unused(op);
    else if (op->err.code != TN_OK)
        over(g, op, &op->err);
    else if (err != NULL)
        broken_off(g, op);
    else
        over(g, op, NULL);
}

static void on_data_received(tn_pg *g, tni_msg *m, const tn_err *err) {
    tni_p2p *op = m->arg;

    op->holds--;
    if (op->err.code != TN_OK) {
        over(g, op, &op->err);
    } else if (err != NULL) {
        broken_off(g, op);
    } else if (op->staging != NULL) {
        op->state = TNI_P_UNPACK; /* not on the transport's thread */
        g->todo++;
        pthread_cond_broadcast(&g->wake);
    } else {
        over(g, op, NULL);
    }
}

/* ---- Matching ---- */

static void match(tn_pg *g, tni_p2p *op, int peer, uint64_t id, uint64_t size) {
    char why[160];

    op->peer = peer;
    op->msg_id = id;
    if (size != op->bytes) {
        talk(g, op, &op->talk, TNI_DECLINE, op->bytes < UINT32_MAX ? (uint32_t)op->bytes : UINT32_MAX);
        snprintf(why, sizeof(why), "rank %d sent %llu bytes; both ends need the same size", peer,
                 (unsigned long long)size);
        fail(g, op, TN_ESHAPE, why);
        return;
    }
    op->state = TNI_P_MATCHED;
    talk(g, op, &op->talk, TNI_CTS, 0);
}

static void forget_rts(tn_pg *g, tni_rts **at) {
    tni_rts *r = *at, *last;

    *at = r->next;
    g->rts_tail = NULL;
    for (last = g->rts; last != NULL && g->rts_tail == NULL; last = last->next)
        if (last->next == NULL)
            g->rts_tail = last;
    tni_link_of(g, r->peer, TNI_P2P)->rts_count--;
    free(r);
}

static tni_p2p *find(const tn_pg *g, bool send, int peer, uint64_t id) {
    tni_p2p *op;

    for (op = g->p2p; op != NULL; op = op->next)
        if (op->send == send && op->peer == peer && op->msg_id == id && (send || op->state != TNI_P_WAITING))
            return op;
    return NULL;
}

/* ---- Frames ---- */

static void heard_rts(tni_link *l) {
    tn_pg *g = l->g;
    tn_rd rd = tn_rd_init(&l->rts_size, sizeof(l->rts_size));
    uint64_t size = tn_rd_u64(&rd);
    tni_p2p *op;
    tni_rts *r;

    for (op = g->p2p; op != NULL; op = op->next) {
        if (!op->send && op->state == TNI_P_WAITING && op->tag == l->in.tag &&
            (op->peer < 0 || op->peer == l->peer)) {
            match(g, op, l->peer, l->in.id, size);
            return;
        }
    }
    r = l->rts_count < MAX_RTS ? calloc(1, sizeof(*r)) : NULL;
    if (r == NULL) {
        tn_err err;

        tn_fail(&err, TN_ETOOBIG, "has %zu messages here that nobody receives", l->rts_count);
        tni_link_broken(l, &err, false);
        return;
    }
    *r = (tni_rts){.peer = l->peer, .tag = l->in.tag, .id = l->in.id, .size = size};
    l->rts_count++;
    if (g->rts_tail != NULL)
        g->rts_tail->next = r;
    else
        g->rts = r;
    g->rts_tail = r;
}

static void on_rts_size(tn_pg *g, tni_msg *m, const tn_err *err) {
    (void)g;
    if (err == NULL)
        heard_rts(m->arg);
}

static void heard_cts(tni_link *l) {
    tn_pg *g = l->g;
    tni_p2p *op = find(g, true, l->peer, l->in.id);

    if (op == NULL || op->state != TNI_P_WAITING)
        return; /* withdrawn, which the peer is about to hear */
    op->state = TNI_P_MOVING;
    op->msg = (tni_msg){.frame = {.type = TNI_DATA, .tag = op->tag, .id = op->msg_id, .size = op->bytes},
                        .data = op->data, .fn = on_data_sent, .arg = op};
    post(g, op, &op->msg, false);
}

static void heard_data(tni_link *l) {
    tn_pg *g = l->g;
    tni_p2p *op = find(g, false, l->peer, l->in.id);

    if (op == NULL) {
        tni_link_drain(l, l->in.size); /* its receive has given up */
    } else if (op->state != TNI_P_MATCHED || l->in.size != op->bytes) {
        tni_link_malformed(l);
    } else {
        op->state = TNI_P_MOVING;
        op->holds++;
        op->msg = (tni_msg){.data = op->data, .fn = on_data_received, .arg = op};
        tni_link_body(l, &op->msg);
    }
}

static void heard_withdraw(tni_link *l) {
    tn_pg *g = l->g;
    tni_p2p *op = find(g, false, l->peer, l->in.id);
    tni_rts **at;

    if (op != NULL && op->state == TNI_P_MATCHED)
        fail(g, op, TN_EPEER, "the sender gave up (its time-out, or it was aborted)");
    for (at = &g->rts; *at != NULL; at = &(*at)->next) {
        if ((*at)->peer == l->peer && (*at)->id == l->in.id) {
            forget_rts(g, at);
            break;
        }
    }
}

static void heard_decline(tni_link *l) {
    tn_pg *g = l->g;
    tni_p2p *op = find(g, true, l->peer, l->in.id);
    char why[160];

    if (op == NULL || op->state != TNI_P_WAITING)
        return;
    snprintf(why, sizeof(why), "rank %d receives %s%lu bytes; both ends need the same size", l->peer,
             l->in.tag == UINT32_MAX ? "at least " : "", (unsigned long)l->in.tag);
    fail(g, op, TN_ESHAPE, why);
}

void tni_p2p_frame(tni_link *l) {
    uint64_t size = l->in.size;

    if (l->in.type == TNI_RTS && size == sizeof(l->rts_size)) {
        l->rts_msg = (tni_msg){.data = &l->rts_size, .fn = on_rts_size, .arg = l};
        tni_link_body(l, &l->rts_msg);
    } else if (l->in.type == TNI_DATA) {
        heard_data(l);
    } else if (size == 0 &&
               (l->in.type == TNI_CTS || l->in.type == TNI_WITHDRAW || l->in.type == TNI_DECLINE)) {
        if (l->in.type == TNI_CTS)
            heard_cts(l);
        else if (l->in.type == TNI_WITHDRAW)
            heard_withdraw(l);
        else
            heard_decline(l);
        tni_link_read(l);
    } else {
        tni_link_malformed(l);
    }
}

/* ---- Giving up ---- */

/* On purpose: the time is up, or the caller aborted. The peer is told, or loses the stream when bytes are
 * under way. */
static void give_up(tn_pg *g, tni_p2p *op, tn_code code, const char *why) {
    tni_link *l = op->peer >= 0 ? tni_link_of(g, op->peer, TNI_P2P) : NULL;
    bool withdraw = false;

    if (op->state == TNI_P_UNPACK || op->err.code != TN_OK)
        return; /* as good as done */
    if (op->send && op->state == TNI_P_WAITING && tni_unsend(l, &op->talk)) {
        op->holds--;
    } else if (op->send && op->state == TNI_P_WAITING) {
        withdraw = true;
    } else if (op->send && tni_unsend(l, &op->msg)) {
        op->holds--;
        withdraw = true;
    } else if (op->state == TNI_P_MOVING && l != NULL && l->conn != NULL) {
        tn_tx_close(l->conn);
    }
    if (withdraw) {
        op->state = TNI_P_WAITING;
        talk(g, op, &op->msg, TNI_WITHDRAW, 0);
    }
    fail(g, op, code, why);
}

bool tni_p2p_cancel(tn_pg *g, uint64_t id, tn_code why) {
    tni_p2p *op;

    for (op = g->p2p; op != NULL && op->id != id; op = op->next)
        ;
    if (op == NULL)
        return false;
    give_up(g, op, why, "it was aborted");
    return true;
}

static bool others_left(const tn_pg *g) {
    int i;

    for (i = 0; i < g->size; i++) {
        tni_link_state s = g->links[i * TNI_KINDS + TNI_P2P].state;

        if (i != g->rank && s != TNI_BROKEN && s != TNI_LEFT)
            return true;
    }
    return false;
}

/* Transfers that the transport has in hand end by their own callbacks: the bytes may just have made it. */
void tni_p2p_lost(tn_pg *g, int peer, const tn_err *err) {
    tni_link *l = tni_link_of(g, peer, TNI_P2P);
    tni_rts **at = &g->rts;
    tni_p2p *op, *next;
    bool alone = !others_left(g);

    while (*at != NULL) {
        if ((*at)->peer == peer)
            forget_rts(g, at);
        else
            at = &(*at)->next;
    }
    for (op = g->p2p; op != NULL; op = next) {
        next = op->next;
        if (op->state == TNI_P_UNPACK || op->err.code != TN_OK)
            continue;
        if (op->peer == peer && op->state == TNI_P_MOVING) {
            if (tni_unsend(l, &op->msg)) {
                op->holds--;
                fail(g, op, err->code, err->msg);
            }
        } else if (op->peer == peer) {
            fail(g, op, err->code, err->msg);
        } else if (op->peer < 0 && alone) {
            fail(g, op, err->code, "no other rank is left");
        }
    }
}

void tni_p2p_abort(tn_pg *g, const tn_err *err) {
    tni_p2p *op, *next;

    for (op = g->p2p; op != NULL; op = next) {
        next = op->next;
        give_up(g, op, err->code, err->msg);
    }
}

static void unpack_one(tn_pg *g) {
    tni_p2p *op;

    for (op = g->p2p; op != NULL && op->state != TNI_P_UNPACK; op = op->next)
        ;
    assert(op != NULL);
    g->todo--;
    pthread_mutex_unlock(&g->lock); /* nobody else touches an operation in this state */
    tn_tensor_unpack(&op->view, op->staging);
    tni_lock(g);
    over(g, op, NULL);
}

void tni_p2p_tick(tn_pg *g, int64_t now) {
    tni_p2p *op, *next;
    char why[160];

    while (g->todo > 0)
        unpack_one(g);
    g->p2p_deadline = TN_FOREVER;
    for (op = g->p2p; op != NULL; op = next) {
        next = op->next;
        if (op->err.code != TN_OK || op->state == TNI_P_UNPACK)
            continue;
        if (now < op->deadline) {
            g->p2p_deadline = op->deadline < g->p2p_deadline ? op->deadline : g->p2p_deadline;
            continue;
        }
        if (op->state == TNI_P_WAITING)
            snprintf(why, sizeof(why), "timed out: %s", op->send ? "the peer posted no receive that matches"
                                                                 : "nothing that matches was sent");
        else
            snprintf(why, sizeof(why), "timed out: the transfer stands still");
        give_up(g, op, TN_ETIMEDOUT, why);
    }
    if (g->finished != NULL) {
        tni_unlock(g);
        tni_lock(g);
    }
}

/* ---- The public calls ---- */

static tn_code check(const tn_pg *g, const char *what, const tn_tensor *t, int peer, bool any, tn_err *err) {
    if (t == NULL || !tn_dtype_valid((int)t->dtype) || t->ndim < 0 || t->ndim > TN_MAX_DIMS ||
        (t->data == NULL && tn_tensor_numel(t) > 0))
        return tn_fail(err, TN_EINVAL, "%s: the tensor is missing or has no memory", what);
    if (peer == g->rank)
        return tn_fail(err, TN_EINVAL, "%s: rank %d is this process itself", what, peer);
    if (!(any && peer == -1) && (peer < 0 || peer >= g->size))
        return tn_fail(err, TN_EINVAL, "%s: %d is not a rank of group '%s' (0 to %d)", what, peer, g->name,
                       g->size - 1);
    return TN_OK;
}

static tni_p2p *op_new(const tn_pg *g, bool send, const tn_tensor *t, int peer, uint32_t tag,
                       const tn_pg_call *call, tn_work **work) {
    tni_p2p *op = calloc(1, sizeof(*op));
    tn_wr w;

    if (op == NULL)
        return NULL;
    op->id = tni_next_id();
    op->send = send;
    op->peer = peer;
    op->tag = tag;
    op->view = *t;
    op->bytes = tn_tensor_nbytes(t);
    op->data = t->data;
    w = tn_wr_fixed(&op->wire_size, sizeof(op->wire_size));
    tn_wr_u64(&w, op->bytes);
    op->issued = tn_now();
    op->deadline = tn_deadline_after(op->issued, call != NULL && call->timeout_ns > 0 ? call->timeout_ns
                                                                                      : g->timeout_ns);
    if (!tn_tensor_contiguous(t) && op->bytes > 0)
        op->data = op->staging = malloc((size_t)op->bytes);
    if (op->data != NULL || op->bytes == 0)
        op->fin = tni_finished_new(work);
    if (op->fin == NULL) {
        free(op->staging);
        free(op);
        return NULL;
    }
    return op;
}

static void op_discard(tni_p2p *op, tn_work **work) {
    tn_work_unref(op->fin->work);
    tn_work_unref(*work);
    *work = NULL;
    free(op->fin);
    free(op->staging);
    free(op);
}

/* Whether the peer can still be talked to. */
static tn_code usable(tn_pg *g, const char *what, int peer, tn_err *err) {
    tni_link *l = peer >= 0 ? tni_link_of(g, peer, TNI_P2P) : NULL;

    if (g->aborted)
        return tn_fail(err, TN_ECANCELED, "%s: group '%s': %.300s", what, g->name, g->fail_text);
    if (g->leaving)
        return tn_fail(err, TN_ECANCELED, "%s: group '%s' is being freed", what, g->name);
    if (l != NULL && (l->state == TNI_BROKEN || l->state == TNI_LEFT))
        return tn_fail(err, TN_EPEER, "%s: rank %d %.300s", what, peer, l->err.msg);
    if (l == NULL && g->size > 1 && !others_left(g))
        return tn_fail(err, TN_EPEER, "%s: no other rank is left in group '%s'", what, g->name);
    return tni_start_thread(g, err);
}

static void enlist(tn_pg *g, tni_p2p *op) {
    if (g->p2p_tail != NULL)
        g->p2p_tail->next = op;
    else
        g->p2p = op;
    g->p2p_tail = op;
    if (op->deadline < g->p2p_deadline) {
        g->p2p_deadline = op->deadline;
        pthread_cond_broadcast(&g->wake);
    }
    if (g->watch_at == TN_FOREVER) {
        g->watch_at = tn_deadline_after(op->issued, TNI_PATIENCE);
        pthread_cond_broadcast(&g->wake);
    }
    /* Nobody else knows the work yet. */
    (void)tn_work_start(op->fin->work, tni_cancel, (void *)(uintptr_t)op->id);
}

tn_code tn_pg_send(tn_pg *g, const tn_tensor *t, int dst, uint32_t tag, const tn_pg_call *call, tn_work **work,
                   tn_err *err) {
    tn_code code = check(g, "send", t, dst, false, err);
    tni_p2p *op;

    *work = NULL;
    if (code != TN_OK)
        return code;
    op = op_new(g, true, t, dst, tag, call, work);
    if (op == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory to send %zu bytes", tn_tensor_nbytes(t));
    if (op->staging != NULL)
        tn_tensor_pack(t, op->staging);
    tni_lock(g);
    code = usable(g, "send", dst, err);
    if (code != TN_OK) {
        op_discard(op, work);
    } else {
        op->msg_id = ++g->p2p_next_id;
        op->talk = (tni_msg){.frame = {.type = TNI_RTS, .flags = (uint16_t)t->dtype, .tag = tag,
                                       .id = op->msg_id, .size = sizeof(op->wire_size)},
                             .data = &op->wire_size, .fn = on_talk, .arg = op};
        enlist(g, op);
        post(g, op, &op->talk, false);
    }
    tni_unlock(g);
    return code;
}

/* Opens the stream to a peer of whom something is expected: if the peer is gone, that is how we notice. */
static void watch(tn_pg *g, int peer) {
    tni_link *l = tni_link_of(g, peer, TNI_P2P);

    if (peer != g->rank && l->state == TNI_CLOSED)
        tni_link_dial(l);
}

tn_code tn_pg_recv(tn_pg *g, const tn_tensor *t, int src, uint32_t tag, int *source, const tn_pg_call *call,
                   tn_work **work, tn_err *err) {
    tn_code code = check(g, "receive", t, src, true, err);
    tni_p2p *op;
    tni_rts **at;
    int i;

    *work = NULL;
    if (code != TN_OK)
        return code;
    op = op_new(g, false, t, src, tag, call, work);
    if (op == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory to receive %zu bytes", tn_tensor_nbytes(t));
    op->source = source;
    tni_lock(g);
    code = usable(g, "receive", src, err);
    if (code != TN_OK) {
        op_discard(op, work);
    } else {
        enlist(g, op);
        for (at = &g->rts; *at != NULL; at = &(*at)->next)
            if ((*at)->tag == tag && (src < 0 || (*at)->peer == src))
                break;
        if (*at != NULL) {
            tni_rts r = **at;

            forget_rts(g, at);
            match(g, op, r.peer, r.id, r.size);
        } else {
            for (i = src < 0 ? 0 : src; i < (src < 0 ? g->size : src + 1); i++)
                watch(g, i);
        }
    }
    tni_unlock(g);
    return code;
}

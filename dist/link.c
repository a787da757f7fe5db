/* Links: the streams between this rank and the others, two for each peer (collectives; point to point).
 *
 * Traffic. Messages leave in the order of the queue. One header receive is always outstanding on an open
 * link, so that FAIL, BYE and the end of the stream are seen at once; the header of a collective message
 * that nobody expects yet is held, and the stream behind it waits. A header is compared with what is
 * expected before its body is read.
 *
 * Failure. When the group fails, each collective link finishes the message that is under way, sends FAIL,
 * and skips what still comes in, so that the peer can finish its own and read the FAIL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/internal.h"

#define DRAIN_BYTES ((size_t)64 << 10)

static void on_header(void *arg, const tn_err *err);

tni_link *tni_link_of(tn_pg *g, int peer, tni_link_kind kind) {
    return &g->links[peer * TNI_KINDS + (int)kind];
}

/* ---- Messages ---- */

static tni_msg *pop(tni_msg **head, tni_msg **tail) {
    tni_msg *m = *head;

    *head = m->next;
    if (*head == NULL)
        *tail = NULL;
    m->next = NULL;
    return m;
}

static void append(tni_msg **head, tni_msg **tail, tni_msg *m) {
    m->next = NULL;
    if (*tail != NULL)
        (*tail)->next = m;
    else
        *head = m;
    *tail = m;
}

static void msg_done(tn_pg *g, tni_msg *m, const tn_err *err) {
    if (m->fn != NULL)
        m->fn(g, m, err);
    else if (m->pending != NULL && err == NULL && --*m->pending == 0)
        pthread_cond_broadcast(&g->wake);
}

/* Counts an operation of the transport. Its callback begins with tni_io_end, which takes the lock. */
void tni_io_begin(tn_pg *g) { g->inflight++; }

void tni_io_end(tn_pg *g) {
    tni_lock(g);
    if (--g->inflight == 0)
        pthread_cond_broadcast(&g->wake);
}

static void on_sent(void *arg, const tn_err *err);

static void pump(tni_link *l) {
    tni_msg *m = l->out_head;
    tn_iov body;

    if (l->conn == NULL || l->sending || m == NULL || l->g->stop ||
        (l->state != TNI_OPEN && l->state != TNI_LEFT))
        return;
    l->sending = true;
    tni_io_begin(l->g);
    body = (tn_iov){m->data, (size_t)m->frame.size};
    tn_frame_send(l->conn, &m->frame, &body, body.n > 0 ? 1 : 0, TN_FOREVER, on_sent, l);
}

/* Both sides have said BYE or FAIL: nothing more can come or go. */
static void close_if_over(tni_link *l) {
    if ((l->bye_in || l->fail_in) && l->out_head == NULL && l->conn != NULL)
        tn_tx_close(l->conn);
}

static void on_sent(void *arg, const tn_err *err) {
    tni_link *l = arg;
    tn_pg *g = l->g;
    tni_msg *m;

    tni_io_end(g);
    if (err->code != TN_OK)
        tni_link_broken(l, err, !l->out_head->control);
    l->sending = false;
    m = pop(&l->out_head, &l->out_tail);
    msg_done(g, m, err->code != TN_OK ? err : NULL);
    if (err->code == TN_OK) {
        pump(l);
        close_if_over(l);
    }
    if (g->failed || g->leaving)
        pthread_cond_broadcast(&g->wake); /* quiesce and tn_pg_free look at the queues */
    tni_unlock(g);
}

/* What stands in the way of using a link, as a failure of the group. True: it stands. */
static bool unusable(tni_link *l) {
    tn_pg *g = l->g;
    char text[TNI_FAIL_TEXT];

    if (l->kind == TNI_COLL && g->failed)
        return true;
    if (l->state != TNI_BROKEN && l->state != TNI_LEFT)
        return false;
    if (l->kind == TNI_COLL) {
        snprintf(text, sizeof(text), "rank %d %.300s", l->peer, l->err.msg);
        tni_fail(g, l->peer, -1, TN_EPEER, g->running != NULL ? g->running->seq : g->seq, text);
    }
    return true;
}

void tni_send(tni_link *l, tni_msg *m) {
    if (unusable(l))
        return;
    append(&l->out_head, &l->out_tail, m);
    if (l->state == TNI_CLOSED)
        tni_link_dial(l);
    else
        pump(l);
}

void tni_send_first(tni_link *l, tni_msg *m) {
    if (l->sending) {
        m->next = l->out_head->next;
        l->out_head->next = m;
    } else {
        m->next = l->out_head;
        l->out_head = m;
    }
    if (m->next == NULL)
        l->out_tail = m;
    if (l->state == TNI_CLOSED)
        tni_link_dial(l);
    else
        pump(l);
}

bool tni_unsend(tni_link *l, tni_msg *m) {
    tni_msg *before = NULL, *at;

    for (at = l->out_head; at != NULL && at != m; at = at->next)
        before = at;
    if (at == NULL || (at == l->out_head && l->sending))
        return false;
    if (before != NULL)
        before->next = m->next;
    else
        l->out_head = m->next;
    if (l->out_tail == m)
        l->out_tail = before;
    m->next = NULL;
    return true;
}

/* ---- The reader ---- */

void tni_link_read(tni_link *l) {
    if (l->conn == NULL || l->reading || l->g->stop)
        return;
    l->reading = true;
    tni_io_begin(l->g);
    tn_frame_recv(l->conn, &l->in, UINT64_MAX, TN_FOREVER, on_header, l);
}

static void on_drained(void *arg, const tn_err *err) {
    tni_link *l = arg;
    tn_pg *g = l->g;

    tni_io_end(g);
    l->reading = false;
    if (err->code != TN_OK)
        tni_link_broken(l, err, false);
    else
        tni_link_drain(l, l->drain_left);
    tni_unlock(g);
}

void tni_link_drain(tni_link *l, uint64_t n) {
    tn_iov piece;
    tn_err err;

    if (n == 0) {
        tni_link_read(l);
        return;
    }
    if (l->drain == NULL && (l->drain = malloc(DRAIN_BYTES)) == NULL) {
        tn_fail(&err, TN_ENOMEM, "no memory to skip a message");
        tni_link_broken(l, &err, false);
        return;
    }
    piece = (tn_iov){l->drain, n < DRAIN_BYTES ? (size_t)n : DRAIN_BYTES};
    l->drain_left = n - piece.n;
    l->reading = true;
    tni_io_begin(l->g);
    tn_tx_recv(l->conn, &piece, 1, TN_FOREVER, on_drained, l);
}

static void on_body(void *arg, const tn_err *err) {
    tni_link *l = arg;
    tn_pg *g = l->g;
    tni_msg *m;

    tni_io_end(g);
    l->reading = false;
    if (err->code != TN_OK)
        tni_link_broken(l, err, true);
    m = l->body;
    l->body = NULL;
    msg_done(g, m, err->code != TN_OK ? err : NULL);
    if (err->code == TN_OK)
        tni_link_read(l);
    if (g->failed || g->leaving)
        pthread_cond_broadcast(&g->wake);
    tni_unlock(g);
}

void tni_link_body(tni_link *l, tni_msg *m) {
    tn_iov piece = {m->data, (size_t)l->in.size};

    if (piece.n == 0) {
        msg_done(l->g, m, NULL);
        tni_link_read(l);
        return;
    }
    l->body = m;
    l->reading = true;
    tni_io_begin(l->g);
    tn_tx_recv(l->conn, &piece, 1, TN_FOREVER, on_body, l);
}

static void describe(char *buf, size_t cap, const tn_frame *f, bool with_seq) {
    unsigned op = f->flags >> 8, dtype = f->flags & 0xff;
    bool reduces = f->type == TNI_ALLREDUCE || f->type == TNI_REDUCE || f->type == TNI_REDUCE_SCATTER;
    char seq[40] = "";

    if (with_seq)
        snprintf(seq, sizeof(seq), " as its number %llu", (unsigned long long)f->id);
    if (f->type == TNI_BARRIER)
        snprintf(buf, cap, "barrier%s", seq);
    else
        snprintf(buf, cap, "%s%s%s %s of %s%lu bytes%s", tni_type_name(f->type), reduces ? " " : "",
                 reduces ? (op < TN_OP_COUNT ? tn_op_name((tn_op)op) : "?") : "",
                 tn_dtype_valid((int)dtype) ? tn_dtype_name((tn_dtype)dtype) : "?",
                 f->tag == UINT32_MAX ? "at least " : "", (unsigned long)f->tag, seq);
}

static void mismatch(tni_link *l, const tn_frame *want) {
    char got[120], wanted[120], text[TNI_FAIL_TEXT];
    bool seq = l->in.id != want->id;

    describe(got, sizeof(got), &l->in, seq);
    describe(wanted, sizeof(wanted), want, seq);
    if ((l->in.type == TNI_CHECK) != (want->type == TNI_CHECK))
        snprintf(
            text, sizeof(text),
            "rank %d checks what others are about to do (TN_DEBUG=DETAIL) and rank %d does not: set it on all "
            "ranks or on none",
            l->in.type == TNI_CHECK ? l->peer : l->g->rank, l->in.type == TNI_CHECK ? l->g->rank : l->peer);
    else if (l->in.type == TNI_REFUSED || want->type == TNI_REFUSED)
        snprintf(text, sizeof(text),
                 "rank %d refused the arguments of its own call (its error says why) where rank %d has %s",
                 l->in.type == TNI_REFUSED ? l->peer : l->g->rank,
                 l->in.type == TNI_REFUSED ? l->g->rank : l->peer, l->in.type == TNI_REFUSED ? wanted : got);
    else if (l->in.type == want->type && l->in.flags == want->flags && l->in.tag == want->tag && !seq)
        snprintf(text, sizeof(text),
                 "rank %d cuts messages differently (%llu bytes where %llu were expected): all ranks need the "
                 "same options `segment` and `small_max`",
                 l->peer, (unsigned long long)l->in.size, (unsigned long long)want->size);
    else
        snprintf(text, sizeof(text),
                 "rank %d sent %s where %s was expected; all ranks must issue the same operations in the same "
                 "order",
                 l->peer, got, wanted);
    tni_fail(l->g, l->peer, -1, TN_ESHAPE, want->id, text);
}

/* A held header and an expected message meet. */
static void match(tni_link *l) {
    tni_msg *m = l->expect_head;
    const tn_frame *want = &m->frame;

    if (l->in.type != want->type || l->in.flags != want->flags || l->in.tag != want->tag ||
        l->in.id != want->id || l->in.size != want->size) {
        mismatch(l, want); /* which makes tni_link_failed skip the body */
        return;
    }
    l->held = false;
    pop(&l->expect_head, &l->expect_tail);
    tni_link_body(l, m);
}

void tni_expect(tni_link *l, tni_msg *m) {
    /* What has arrived before the peer left or broke is still good, but only in order: nothing is held then. */
    if (unusable(l))
        return;
    append(&l->expect_head, &l->expect_tail, m);
    if (l->state == TNI_CLOSED)
        tni_link_dial(l);
    else if (l->held)
        match(l);
}

/* The text of a FAIL as it came: made printable. */
static void clean(uint8_t *text, size_t n, char *out, size_t cap) {
    size_t i;

    for (i = 0; i < n && i + 1 < cap; i++)
        out[i] = text[i] >= 0x20 && text[i] != 0x7f ? (char)text[i] : '?';
    out[i] = '\0';
}

void tni_heard_fail(tn_pg *g, int peer, tni_link_kind kind, const tn_frame *f, const uint8_t *text) {
    char buf[TNI_FAIL_TEXT];
    uint8_t copy[TNI_FAIL_TEXT];
    tn_code code = f->flags > TN_OK && f->flags <= TN_EINTERNAL ? (tn_code)f->flags : TN_EPEER;

    if (code == TN_ECANCELED)
        code = TN_EPEER; /* cancelled there; here the peer is what failed */
    memcpy(copy, text, (size_t)f->size);
    clean(copy, (size_t)f->size, buf, sizeof(buf));
    if (kind == TNI_COLL) {
        tni_fail(g, f->tag < (uint32_t)g->size ? (int)f->tag : -1, peer, code, f->id, buf);
    } else {
        tn_err err;

        tn_fail(&err, code, "%s", buf);
        tni_p2p_lost(g, peer, &err);
    }
}

static void on_fail_text(void *arg, const tn_err *err) {
    tni_link *l = arg;
    tn_pg *g = l->g;

    tni_io_end(g);
    l->reading = false;
    if (err->code != TN_OK) {
        tni_link_broken(l, err, false);
    } else {
        l->fail_in = true;
        tni_heard_fail(g, l->peer, l->kind, &l->in, l->text);
        if (l->kind == TNI_P2P) {
            l->state = TNI_LEFT;
            tn_fail(&l->err, TN_EPEER, "has aborted the group");
        }
        tni_link_read(l); /* for the end of the stream */
        close_if_over(l);
    }
    pthread_cond_broadcast(&g->wake);
    tni_unlock(g);
}

/* Whether a collective still needs the peer. The message that is under way does not count: its bytes may have
 * arrived and served their purpose there before our callback has run; if not, that callback says so. */
static bool needs_peer(const tni_link *l) {
    const tni_msg *m = l->sending ? l->out_head->next : l->out_head;

    for (; m != NULL; m = m->next)
        if (!m->control)
            return true;
    return l->expect_head != NULL;
}

static void heard_bye(tni_link *l) {
    tn_pg *g = l->g;
    tn_err err;

    l->bye_in = true;
    l->state = TNI_LEFT;
    tn_fail(&l->err, TN_EPEER, "has left the group");
    if (l->kind == TNI_P2P) {
        tn_fail(&err, TN_EPEER, "rank %d has left the group", l->peer);
        tni_p2p_lost(g, l->peer, &err);
    } else if (l->kind == TNI_COLL && needs_peer(l)) {
        (void)unusable(l); /* fails the group by name */
    }
    tni_link_bye(l);
    tni_link_read(l); /* for the end of the stream */
    close_if_over(l);
    pthread_cond_broadcast(&g->wake);
}

void tni_link_malformed(tni_link *l) {
    tn_err err;

    tn_fail(&err, TN_EPROTO, "sent a frame of type %u and %llu bytes that has no place here", l->in.type,
            (unsigned long long)l->in.size);
    tni_link_broken(l, &err, false);
}

static void on_header(void *arg, const tn_err *err) {
    tni_link *l = arg;
    tn_pg *g = l->g;
    tn_iov piece;

    tni_io_end(g);
    l->reading = false;
    if (err->code != TN_OK) {
        tni_link_broken(l, err, false);
    } else if (l->in.type == TNI_FAIL && l->in.size <= TNI_FAIL_TEXT && l->in.size > 0) {
        piece = (tn_iov){l->text, (size_t)l->in.size};
        l->reading = true;
        tni_io_begin(g);
        tn_tx_recv(l->conn, &piece, 1, TN_FOREVER, on_fail_text, l);
    } else if (l->in.type == TNI_BYE && l->in.size == 0) {
        heard_bye(l);
    } else if (l->kind == TNI_P2P) {
        tni_p2p_frame(l);
    } else if (l->kind == TNI_VOTE) {
        tni_vote_frame(l);
    } else if (l->kind == TNI_WATCH || l->in.type < TNI_ALLREDUCE || l->in.type > TNI_CHECK) {
        tni_link_malformed(l);
    } else if (g->failed) {
        tni_link_drain(l, l->in.size);
    } else {
        l->seen = l->in.id;
        l->held = true;
        if (l->expect_head != NULL)
            match(l);
    }
    tni_unlock(g);
}

/* ---- Ends of a link ---- */

static void control(tni_msg *m, tni_type type) {
    *m = (tni_msg){.frame = {.type = (uint8_t)type}, .control = true};
}

/* Drops queued messages, all but the one that is under way. */
void tni_link_drop(tni_link *l, bool keep_control) {
    tn_err dropped = {.code = TN_EPEER};
    tni_msg *keep_head = NULL, *keep_tail = NULL;
    bool first = true;

    l->expect_head = l->expect_tail = NULL;
    while (l->out_head != NULL) {
        tni_msg *m = pop(&l->out_head, &l->out_tail);

        if ((first && l->sending) || (keep_control && m->control))
            append(&keep_head, &keep_tail, m);
        else
            msg_done(l->g, m, &dropped);
        first = false;
    }
    l->out_head = keep_head;
    l->out_tail = keep_tail;
}

void tni_link_broken(tni_link *l, const tn_err *err, bool needed) {
    tn_pg *g = l->g;
    tni_link *other = tni_link_of(g, l->peer, TNI_COLL);
    bool was_over = l->state == TNI_BROKEN || l->state == TNI_LEFT;

    needed = needed || needs_peer(l);
    if (l->conn != NULL)
        tn_tx_close(l->conn);
    if (!was_over && l->fail_in) {
        l->state = TNI_LEFT;
        tn_fail(&l->err, TN_EPEER, "has failed before");
    } else if (!was_over) {
        l->state = TNI_BROKEN;
        tn_fail(&l->err, TN_EPEER, "is gone (%.300s)", err->msg);
    }
    l->held = false;
    if (l->kind == TNI_COLL) {
        if (needed && !g->failed && !g->closing)
            (void)unusable(l);
        tni_link_drop(l, false);
    } else if (l->kind != TNI_P2P) {
        tni_link_drop(l, false);
        if (l->kind == TNI_WATCH)
            g->watch_at = tn_now();
    } else {
        tn_err lost;

        tni_link_drop(l, false);
        tn_fail(&lost, TN_EPEER, "rank %d %.300s", l->peer, l->err.msg);
        tni_p2p_lost(g, l->peer, &lost);
        /* A collective that waits for the peer to open its stream would wait for ever. */
        if (!was_over && other->state == TNI_EXPECTED) {
            other->state = TNI_BROKEN;
            other->err = l->err;
            if (other->expect_head != NULL || other->out_head != NULL)
                (void)unusable(other);
        }
    }
    pthread_cond_broadcast(&g->wake);
}

static void queue_fail(tni_link *l) {
    tn_pg *g = l->g;

    control(&l->fail, TNI_FAIL);
    l->fail.frame.flags = (uint16_t)g->fail_code;
    l->fail.frame.tag = (uint32_t)g->culprit;
    l->fail.frame.id = g->fail_seq;
    l->fail.frame.size = strlen(g->fail_text);
    l->fail.data = g->fail_text;
    append(&l->out_head, &l->out_tail, &l->fail);
    l->bye_out = true; /* nothing more after it */
    pump(l);
}

void tni_link_failed(tni_link *l) {
    tni_link_drop(l, true);
    if (l->state == TNI_OPEN && !l->bye_out) {
        queue_fail(l);
        if (l->held) {
            l->held = false;
            tni_link_drain(l, l->in.size);
        }
    } else if (l->state == TNI_CLOSED) {
        tni_link_dial(l); /* to tell the peer, which may wait for us */
    }
}

void tni_link_abort(tni_link *l) {
    if (l->state == TNI_OPEN && !l->bye_out)
        queue_fail(l);
}

bool tni_link_busy(const tni_link *l) {
    return l->body != NULL || (l->sending && l->out_head != NULL && !l->out_head->control);
}

void tni_link_bye(tni_link *l) {
    if (l->bye_out || l->conn == NULL || (l->state != TNI_OPEN && l->state != TNI_LEFT))
        return;
    l->bye_out = true;
    control(&l->bye, TNI_BYE);
    append(&l->out_head, &l->out_tail, &l->bye);
    pump(l);
}

bool tni_link_quiet(const tni_link *l) {
    switch (l->state) {
    case TNI_OPEN:
        return false;
    case TNI_DIALING:
    case TNI_EXPECTED:
        return l->kind != TNI_COLL || !l->g->failed; /* the peer is to hear of the failure */
    case TNI_LEFT:
        return l->out_head == NULL;
    case TNI_CLOSED:
    case TNI_BROKEN:
        break;
    }
    return true;
}

/* ---- The beginning of a link ---- */

void tni_link_opened(tni_link *l, tn_tx_conn *conn, bool welcome) {
    tn_pg *g = l->g;

    tni_watch_connected(l, conn);
    l->knocked = 0;
    l->conn = conn;
    l->state = TNI_OPEN;
    if (welcome) { /* before anything that is queued already */
        control(&l->welcome, TNI_WELCOME);
        l->welcome.next = l->out_head;
        l->out_head = &l->welcome;
        if (l->out_tail == NULL)
            l->out_tail = &l->welcome;
    }
    if (l->kind == TNI_COLL && g->failed)
        queue_fail(l);
    else if (g->closing)
        tni_link_bye(l);
    if (l->kind == TNI_VOTE)
        tni_vote_opened(l);
    pump(l);
    tni_link_read(l);
}

/* Silent hosts. A process that dies takes its streams with it, and everybody sees that at once. A host that
 * loses its power or its cable says nothing: its streams stay open for minutes. A process that is stopped, or
 * busy for a long time, says nothing either, but must not be taken for dead. What tells them apart is the
 * kernel: it answers for a stopped process, and nobody answers for a host that is gone.
 *
 * So whoever has waited for a peer on another host for TNI_PATIENCE opens one more stream to it, of the kind
 * TNI_WATCH, which never carries anything but its hello. Connecting asks the peer's kernel once; afterwards
 * keep-alive asks it again every second, which works just because nothing fills this stream.
 * When it breaks we connect again: a refusal or an answer means that the host is there (if the process died,
 * its other streams say so, in their order); none for SILENCE means that the host is gone, and the other
 * streams to it are given up.
 *
 * The same tick dials again where there was no route for a moment, and where a crossed dial of the peer never
 * arrived, as it may have died in between (both TNI_EXPECTED). */
#include <errno.h>

#include "dist/internal.h"

#define SILENCE (3500 * TN_MS) /* without an answer to a dial; with TNI_PATIENCE this is less than 5 s */
#define AGAIN (1200 * TN_MS)   /* the same, where keep-alive has got none before for IDLE + COUNT * INTERVAL */
#define IDLE 1                 /* seconds */
#define INTERVAL 1
#define COUNT 2
#define TICK (250 * TN_MS)
#define SLOW_TICK (1 * TN_SECOND)

static bool elsewhere(const tni_link *l) {
    const char *url = l->g->addr[l->peer];

    return url == NULL || !tn_tx_url_is_local(url); /* NULL: the peer comes before its address was read */
}

/* Whether something of this rank waits for the link. */
static bool waited_for(const tn_pg *g, const tni_link *l) {
    const tni_p2p *op;

    if (g->closing)
        return l->state == TNI_OPEN; /* for its BYE */
    if (l->kind == TNI_COLL)
        return l->expect_head != NULL || l->body != NULL || l->out_head != NULL;
    for (op = g->p2p; op != NULL; op = op->next)
        if (op->peer == l->peer || op->peer < 0)
            return true;
    return l->out_head != NULL || l->body != NULL;
}

void tni_watch_dial_again(tni_link *l) {
    if (l->state != TNI_EXPECTED)
        return;
    l->state = TNI_CLOSED;
    tni_link_dial(l);
}

static void knock(tni_link *w, int64_t now) {
    if (w->state == TNI_BROKEN && !w->reading && !w->sending && now - w->tried >= SLOW_TICK) {
        tn_tx_conn_unref(w->conn);
        w->conn = NULL;
        w->state = TNI_CLOSED;
    }
    if (w->state != TNI_CLOSED)
        return;
    w->tried = now;
    if (w->knocked == 0)
        w->knocked = now;
    tni_link_dial(w);
}

void tni_watch_tick(tn_pg *g, int64_t now) {
    bool waits = false, trouble = false;
    int i;

    for (i = 0; i < g->size && !g->stop; i++) {
        tni_link *coll = tni_link_of(g, i, TNI_COLL), *p2p = tni_link_of(g, i, TNI_P2P);
        tni_link *w = tni_link_of(g, i, TNI_WATCH);
        bool for_coll = i != g->rank && waited_for(g, coll), for_p2p = i != g->rank && waited_for(g, p2p);

        if (!for_coll && !for_p2p)
            continue;
        waits = true;
        if (for_coll)
            tni_watch_dial_again(coll);
        if (for_p2p)
            tni_watch_dial_again(p2p);
        if (!elsewhere(w))
            continue;
        knock(w, now);
        trouble = trouble || w->state == TNI_CLOSED || w->state == TNI_BROKEN;
    }
    g->watch_at = waits ? now + (trouble ? TICK : SLOW_TICK) : TN_FOREVER;
}

int64_t tni_watch_patience(const tni_link *l) {
    int64_t left;

    if (l->kind == TNI_VOTE && elsewhere(l))
        return SILENCE;
    if (l->kind != TNI_WATCH)
        return l->g->timeout_ns;
    left = l->knocked + (l->answered ? AGAIN : SILENCE) - tn_now();
    return left > TICK ? left : TICK;
}

void tni_watch_connected(tni_link *l, tn_tx_conn *conn) {
    if ((l->kind != TNI_WATCH && l->kind != TNI_VOTE) || !elsewhere(l))
        return;
    l->knocked = 0;
    l->answered = true;
    (void)tn_tx_keepalive(conn, IDLE, INTERVAL, COUNT, NULL); /* fails if the stream has broken already */
}

/* The host is gone: nothing that is still in flight from there is worth waiting for. */
static void silent(tn_pg *g, int peer, int64_t ns) {
    tn_err err;

    tn_fail(&err, TN_EPEER, "its host has not answered for %.1f s", (double)ns / 1e9);
    tni_link_broken(tni_link_of(g, peer, TNI_COLL), &err, false);
    tni_link_broken(tni_link_of(g, peer, TNI_P2P), &err, false);
}

bool tni_watch_later(tni_link *l, const tn_err *err) {
    int64_t now = tn_now();

    if (err->sys != EHOSTUNREACH)
        return false;
    if (l->knocked == 0)
        l->knocked = now;
    if (now - l->knocked >= SILENCE)
        return false;
    l->state = TNI_EXPECTED;
    return true;
}

void tni_watch_failed(tni_link *l, const tn_err *err) {
    int64_t unanswered = tn_now() - l->knocked;

    if (err->code != TN_ETIMEDOUT && err->sys != EHOSTUNREACH) {
        l->state = TNI_LEFT; /* there is somebody who refuses; the other streams tell the rest */
        tn_fail(&l->err, TN_EPEER, "refuses to be watched");
    } else if (unanswered < (l->answered ? AGAIN : SILENCE)) {
        l->state = TNI_CLOSED; /* no route, just now: the tick tries again */
    } else {
        l->state = TNI_LEFT;
        tn_fail(&l->err, TN_EPEER, "does not answer");
        silent(l->g, l->peer, unanswered + (l->answered ? (IDLE + COUNT * INTERVAL) * TN_SECOND : 0));
    }
}

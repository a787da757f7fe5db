/* One connection: a stream with one receive armed and at most one send under way, and the state that says what
 * may come next.
 *
 *   HELLO   CHALLENGE is sent at once; HELLO has to come within HANDSHAKE_NS
 *   READY   NEXT, GET, BEGIN, BYE, one request at a time; no limit of time: it trains, or waits in NEXT
 *   UPLOAD  PUT and END; each within PROGRESS_NS
 *   SAVING  nothing but the end of the connection; the answer comes from update_flush
 *   ENDING  an ERROR is going out; what still comes in is thrown away until the peer has closed
 *
 * Threads: header_in and body_in run on the transport's threads. They look at what the driver set before it
 * armed the receive, move bytes, and post. Every operation of the transport posts exactly one event, and a
 * session is freed when none is under way. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/random.h"
#include "server/internal.h"

#define DRAIN_NS (2 * TN_SECOND) /* for the peer to read an ERROR and close */
#define MAX_QUEUED_NOTICES 2

/* ---- The table of sessions by id ---- */

static size_t slot_of(const char *id) {
    uint64_t h = UINT64_C(14695981039346656037); /* FNV-1a; ids are bounded in number by max-connections */

    for (; *id != '\0'; id++)
        h = (h ^ (uint8_t)*id) * UINT64_C(1099511628211);
    return h % TABLE;
}

session *session_find(srv *s, const char *id) {
    session *c = s->table[slot_of(id)];

    while (c != NULL && strcmp(c->id, id) != 0)
        c = c->same_hash;
    return c;
}

static void table_add(session *c) {
    session **slot = &c->srv->table[slot_of(c->id)];

    c->same_hash = *slot;
    *slot = c;
}

static void table_remove(session *c) {
    session **p = &c->srv->table[slot_of(c->id)];

    while (*p != NULL && *p != c)
        p = &(*p)->same_hash;
    if (*p != NULL)
        *p = c->same_hash;
}

/* ---- Receiving ---- */

static bool may_send(const session *c, uint8_t type) {
    switch (type) {
    case TN_MSG_HELLO:
        return !c->greeted;
    case TN_MSG_NEXT:
    case TN_MSG_GET:
    case TN_MSG_BEGIN:
    case TN_MSG_END:
    case TN_MSG_BYE:
        return c->greeted;
    case TN_MSG_PUT:
        return atomic_load(&c->takes_put);
    default:
        return false;
    }
}

static void post(session *c, event_kind kind) {
    c->rx.kind = kind;
    events_post(&c->srv->events, &c->rx);
}

static void body_in(void *arg, const tn_err *err) {
    session *c = arg;

    c->rx.err = *err;
    post(c, err->code == TN_OK ? EV_MESSAGE : EV_RECV_FAIL);
}

/* Whether a session is beyond its handshake does not change while a receive is armed; its state does, when a
 * NEXT is answered: the driver looks at that when the message is in. */
static void header_in(void *arg, const tn_err *err) {
    session *c = arg;
    const tn_frame *f = &c->in;
    uint64_t max = f->type == TN_MSG_PUT ? UPLOAD_CHUNK : tn_msg_max(f->type);
    bool empty = f->type == TN_MSG_NEXT || f->type == TN_MSG_END || f->type == TN_MSG_BYE;
    tn_iov iov;

    c->rx.err = *err;
    if (err->code != TN_OK) {
        /* A frame that is none of ours is refused by name; the rest is a connection that broke. */
        post(c, err->code == TN_EPROTO || err->code == TN_EVERSION ? EV_RECV_BAD : EV_RECV_FAIL);
    } else if (!may_send(c, f->type)) {
        tn_fail(&c->rx.err, TN_EPROTO, "%s (type %u) may not come now", tn_msg_name(f->type), (unsigned)f->type);
        post(c, EV_RECV_BAD);
    } else if (f->size > (empty ? 0 : max) || (f->size == 0 && !empty)) {
        tn_fail(&c->rx.err, f->size == 0 || empty ? TN_EPROTO : TN_ETOOBIG, "%s with a body of %" PRIu64 " bytes",
                tn_msg_name(f->type), f->size);
        post(c, EV_RECV_BAD);
    } else if (f->size == 0) {
        post(c, EV_MESSAGE);
    } else {
        c->body = f->type == TN_MSG_PUT ? c->put_buffer : malloc(f->size);
        iov = (tn_iov){c->body, f->size};
        if (c->body == NULL) {
            tn_fail(&c->rx.err, TN_ENOMEM, "no memory for a message of %" PRIu64 " bytes", f->size);
            post(c, EV_RECV_BAD);
        } else {
            tn_tx_recv(c->conn, &iov, 1, c->greeted ? PROGRESS_NS : HANDSHAKE_NS, body_in, c);
        }
    }
}

static void arm(session *c) {
    int64_t limit = c->state == SESSION_HELLO    ? HANDSHAKE_NS
                    : c->state == SESSION_UPLOAD ? PROGRESS_NS
                                                 : TN_FOREVER;

    c->rx_busy = true;
    tn_frame_recv(c->conn, &c->in, UINT64_MAX, limit, header_in, c); /* header_in knows the limit of each type */
}

/* Reads until the peer closes, so that the ERROR it was sent is not lost to a reset. One small read is enough:
 * a peer that sends more than that has not stopped to listen. */
static void drained(void *arg, const tn_err *err) {
    session *c = arg;

    c->rx.err = *err;
    post(c, EV_RECV_FAIL);
}

static void drain(session *c) {
    tn_iov iov = {c->scrap, sizeof(c->scrap)};

    c->rx_busy = true;
    tn_tx_recv(c->conn, &iov, 1, DRAIN_NS, drained, c);
}

static void drop_body(session *c) {
    if (c->body != c->put_buffer)
        free(c->body);
    c->body = NULL;
}

/* ---- Sending ---- */

static void sent(void *arg, const tn_err *err) {
    session *c = arg;

    c->tx.kind = EV_SENT;
    c->tx.err = *err;
    events_post(&c->srv->events, &c->tx);
}

static void free_out(out_frame *o) {
    free(o->own);
    model_unref(o->shared);
    free(o);
}

static void send_head(session *c) {
    out_frame *o = c->out_head;
    tn_iov iov = {(void *)(uintptr_t)o->p, o->frame.size};

    c->tx_busy = true;
    tn_frame_send(c->conn, &o->frame, &iov, o->frame.size != 0, PROGRESS_NS, sent, c);
}

static void enqueue(session *c, out_frame *o) {
    if (c->out_tail != NULL)
        c->out_tail->next = o;
    else
        c->out_head = o;
    c->out_tail = o;
    if (!c->tx_busy)
        send_head(c);
}

void session_send(session *c, uint8_t type, uint64_t id, tn_wr *w) {
    out_frame *o = NULL;

    if (c->state >= SESSION_ENDING && type != TN_MSG_ERROR)
        goto out;
    o = calloc(1, sizeof(*o));
    if (o == NULL || w->fail != TN_OK) {
        tn_log(TN_LOG_ERROR, "server", "a %s for %s cannot be made: %s", tn_msg_name(type), tn_tx_conn_peer(c->conn),
               tn_code_text(o == NULL ? TN_ENOMEM : w->fail));
        free(o);
        session_close(c);
        goto out;
    }
    o->frame = (tn_frame){.type = type, .id = id, .size = w->len};
    o->own = w->p;
    o->p = w->p;
    memset(w, 0, sizeof(*w));
    enqueue(c, o);
out:
    tn_wr_release(w);
}

void session_send_piece(session *c, uint64_t offset, size_t n, model *m) {
    out_frame *o = calloc(1, sizeof(*o));

    if (o == NULL) {
        session_close(c);
        return;
    }
    o->frame = (tn_frame){.type = TN_MSG_DATA, .id = offset, .size = n};
    o->p = m->block + offset;
    o->shared = model_ref(m);
    enqueue(c, o);
}

TN_PRINTF(4, 0)
static void send_error(session *c, uint64_t request, tn_code code, const char *fmt, va_list args) {
    tn_msg_error m = {.code = code};
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);

    vsnprintf(m.text, sizeof(m.text), fmt, args);
    srv_log_refusal(c->srv, "%s%s%s: %s", c->id, c->id[0] != '\0' ? " at " : "", tn_tx_conn_peer(c->conn), m.text);
    tn_msg_error_encode(&m, &w);
    session_send(c, TN_MSG_ERROR, request, &w);
}

void session_error(session *c, uint64_t request, tn_code code, const char *fmt, ...) {
    va_list args;

    va_start(args, fmt);
    send_error(c, request, code, fmt, args);
    va_end(args);
}

void session_notice(session *c, const char *text) {
    tn_msg_notice m;
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);
    int queued = 0;

    for (const out_frame *o = c->out_head; o != NULL; o = o->next)
        queued++;
    if (queued > MAX_QUEUED_NOTICES) /* a slow reader misses some */
        return;
    snprintf(m.text, sizeof(m.text), "%s", text);
    tn_msg_notice_encode(&m, &w);
    session_send(c, TN_MSG_NOTICE, 0, &w);
}

/* ---- Beginning and ending ---- */

/* The client is gone as far as the rounds are concerned. */
static void leave(session *c, tn_round_ev_kind how) {
    char id[TN_ID_MAX + 1];
    bool joined = c->joined;

    if (c->state == SESSION_HELLO)
        c->srv->nhandshakes--;
    update_session_gone(c);
    c->open_next = 0;
    c->joined = false;
    snprintf(id, sizeof(id), "%s", c->id);
    if (c->id[0] != '\0')
        table_remove(c);
    c->id[0] = '\0';
    if (joined)
        rounds_feed(c->srv, how, id);
}

static void free_if_idle(session *c) {
    srv *s = c->srv;

    if (c->state != SESSION_CLOSED || c->rx_busy || c->tx_busy)
        return;
    while (c->out_head != NULL) {
        out_frame *o = c->out_head;

        c->out_head = o->next;
        free_out(o);
    }
    *(c->prev != NULL ? &c->prev->next : &s->sessions) = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    s->nsessions--;
    tn_tx_conn_unref(c->conn);
    drop_body(c);
    free(c->put_buffer);
    free(c->challenge);
    free(c);
}

static void close_how(session *c, tn_round_ev_kind how) {
    session_state was = c->state;

    if (was == SESSION_CLOSED)
        return;
    tn_tx_close(c->conn);
    if (was != SESSION_ENDING)
        leave(c, how);
    c->state = SESSION_CLOSED;
}

void session_close(session *c) { close_how(c, TN_EV_BREAK); }

void session_end(session *c, tn_code code, const char *fmt, ...) {
    va_list args;

    if (c->state >= SESSION_ENDING)
        return;
    va_start(args, fmt);
    send_error(c, 0, code, fmt, args);
    va_end(args);
    if (c->state == SESSION_CLOSED)
        return;
    leave(c, TN_EV_BREAK);
    c->state = SESSION_ENDING;
}

static void send_challenge(session *c) {
    srv *s = c->srv;
    tn_msg_challenge *m = c->challenge;
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);

    m->version = TN_PROTOCOL;
    tn_random_bytes(m->nonce, sizeof(m->nonce));
    memcpy(m->key, s->identity.pk, sizeof(m->key));
    m->tls = c->tls;
    if (c->tls)
        memcpy(m->cert, s->cert, sizeof(m->cert));
    snprintf(m->job, sizeof(m->job), "%s", s->cfg->job);
    tn_msg_challenge_encode(m, &w);
    session_send(c, TN_MSG_CHALLENGE, 0, &w);
}

void session_new(srv *s, tn_tx_conn *conn, bool tls) {
    session *c = calloc(1, sizeof(*c));

    if (c == NULL || (c->challenge = calloc(1, sizeof(*c->challenge))) == NULL) {
        srv_log_refusal(s, "%s: no memory for a connection", tn_tx_conn_peer(conn));
        free(c);
        tn_tx_conn_unref(conn);
        return;
    }
    c->srv = s;
    c->conn = conn;
    c->tls = tls;
    c->rx.owner = c->tx.owner = c;
    c->next = s->sessions;
    if (c->next != NULL)
        c->next->prev = c;
    s->sessions = c;
    s->nsessions++;
    s->nhandshakes++;
    if (s->nsessions > (size_t)s->cfg->max_connections)
        session_end(c, TN_EBUSY, "the server has %lld connections, which is its limit", (long long)s->cfg->max_connections);
    else
        send_challenge(c);
    if (c->state == SESSION_HELLO)
        arm(c);
    free_if_idle(c);
}

/* ---- HELLO ---- */

/* A key that is not known may have been enrolled since the file was read. */
static const tn_enrolled *enrolled(srv *s, const uint8_t key[TN_KEY_BYTES]) {
    const tn_enrolled *e = tn_roster_find(&s->roster, key);
    tn_roster fresh = {NULL, 0};
    tn_err err = TN_ERR_INIT;
    int64_t now = tn_now();

    if (e != NULL || now - s->roster_read < TN_SECOND)
        return e;
    s->roster_read = now;
    if (tn_roster_load(&fresh, s->cfg->enrolled, &err) != TN_OK) {
        tn_log(TN_LOG_WARN, "server", "%s", err.msg);
        tn_roster_release(&fresh);
        return NULL;
    }
    tn_roster_release(&s->roster);
    s->roster = fresh;
    return tn_roster_find(&s->roster, key);
}

/* Who is it? Fills in c->id. */
static tn_code authenticate(session *c, const tn_msg_hello *m, const uint8_t transcript[TN_HASH_BYTES], tn_err *err) {
    const tn_enrolled *e;
    const char *id = m->id;

    if (c->tls) {
        e = enrolled(c->srv, m->key);
        if (e == NULL)
            return tn_fail(err, TN_EAUTH, "this client's identity is not enrolled in the server's list of clients; "
                           "`torchnative-ctl cert issue` enrols one");
        if (memcmp(e->cert, m->cert, sizeof(e->cert)) != 0)
            return tn_fail(err, TN_EAUTH, "client %s came with another certificate than the one it was enrolled with",
                           e->id);
        id = e->id; /* what the client claims decides nothing */
    } else if (id[0] == '\0') {
        return tn_fail(err, TN_EAUTH, "without TLS a client has to say its id");
    }
    if (tn_key_verify(m->key, TN_HELLO_CLIENT, transcript, TN_HASH_BYTES, m->sig, err) != TN_OK)
        return tn_ctx(err, "HELLO");
    snprintf(c->id, sizeof(c->id), "%s", id);
    c->authenticated = c->tls;
    return TN_OK;
}

static void send_welcome(session *c, const uint8_t transcript[TN_HASH_BYTES]) {
    srv *s = c->srv;
    tn_msg_welcome m = {.authenticated = c->authenticated,
                        .rounds = (uint64_t)s->cfg->rounds,
                        .chunk = UPLOAD_CHUNK,
                        .resume_seconds = s->cfg->resume_window,
                        .layout = s->layout};
    tn_wr w = tn_wr_init(TN_MSG_MAX_META);
    tn_err err = TN_ERR_INIT;

    snprintf(m.id, sizeof(m.id), "%s", c->id);
    snprintf(m.aggregator, sizeof(m.aggregator), "%s", s->agg->name);
    if (tn_key_sign(&s->identity, TN_HELLO_SERVER, transcript, TN_HASH_BYTES, m.sig, &err) != TN_OK) {
        session_end(c, TN_EINTERNAL, "%s", err.msg);
        return;
    }
    tn_msg_welcome_encode(&m, &w);
    session_send(c, TN_MSG_WELCOME, 0, &w);
}

static void on_hello(session *c, const uint8_t *body, size_t n) {
    srv *s = c->srv;
    uint8_t transcript[TN_HASH_BYTES];
    char id[TN_ID_MAX + 1];
    tn_err err = TN_ERR_INIT;
    tn_msg_hello m;
    session *old;

    if (tn_msg_hello_decode(&m, body, n, &err) != TN_OK) {
        session_end(c, err.code, "%s", err.msg);
        return;
    }
    tn_msg_transcript(c->challenge, &m, transcript);
    if (authenticate(c, &m, transcript, &err) != TN_OK) {
        session_end(c, err.code, "%s", err.msg);
        return;
    }
    /* A newer connection takes the place of an older one: the old one is often dead without knowing. The round
     * machine sees no break, because the client is here. */
    snprintf(id, sizeof(id), "%s", c->id);
    old = session_find(s, id);
    if (old != NULL) {
        c->joined = old->joined;
        old->joined = false;
        session_end(old, TN_EBUSY, "a newer connection of %s has replaced this one", id);
    }
    table_add(c);
    s->nhandshakes--;
    c->state = SESSION_READY;
    c->greeted = true;
    free(c->challenge);
    c->challenge = NULL;
    tn_log(TN_LOG_DEBUG, "server", "client %s connected from %s%s", c->id, tn_tx_conn_peer(c->conn),
           c->authenticated ? "" : " (not authenticated)");
    send_welcome(c, transcript);
}

/* ---- Requests ---- */

static void on_next(session *c, uint64_t request) {
    char text[256];

    c->open_next = request;
    rounds_offer(c);
    if (c->open_next != 0) {
        rounds_sentence(c->srv, text, sizeof(text));
        session_notice(c, text);
        c->last_sent = tn_now();
    }
}

static void on_get(session *c, uint64_t request, const uint8_t *body, size_t n) {
    srv *s = c->srv;
    uint64_t now = rounds_servable(s);
    tn_err err = TN_ERR_INIT;
    tn_msg_get m;

    if (tn_msg_get_decode(&m, body, n, &err) != TN_OK)
        session_end(c, err.code, "%s", err.msg);
    else if (m.round != now)
        session_error(c, request, TN_EROUND, "the model of round %" PRIu64 " is not served any more; now it is round %" PRIu64,
                      m.round, now);
    else if (m.size == 0 || m.offset >= s->layout.nbytes)
        session_error(c, request, TN_ENOTFOUND, "GET of %" PRIu64 " bytes from %" PRIu64 " of a model of %zu", m.size, m.offset,
                      s->layout.nbytes);
    else
        session_send_piece(c, m.offset, m.size < s->layout.nbytes - m.offset ? m.size : s->layout.nbytes - m.offset,
                           s->model);
}

/* The first request says that the client is ready. */
static void join(session *c) {
    if (!c->joined) {
        c->joined = true;
        rounds_feed(c->srv, TN_EV_JOIN, c->id);
    }
}

static void on_message(session *c) {
    const tn_frame f = c->in;
    bool ready = c->state == SESSION_READY && c->open_next == 0;
    bool fits = f.type == TN_MSG_BYE || (c->state == SESSION_HELLO && f.type == TN_MSG_HELLO) ||
                (c->state == SESSION_UPLOAD && (f.type == TN_MSG_PUT || f.type == TN_MSG_END)) ||
                (ready && (f.type == TN_MSG_NEXT || f.type == TN_MSG_GET || f.type == TN_MSG_BEGIN));

    if (!fits || (f.id == 0 && (f.type == TN_MSG_NEXT || f.type == TN_MSG_GET || f.type == TN_MSG_BEGIN ||
                                f.type == TN_MSG_END))) {
        session_end(c, TN_EPROTO, "%s may not come now", tn_msg_name(f.type));
        return;
    }
    if (ready && f.type != TN_MSG_BYE)
        join(c);
    if (c->state >= SESSION_ENDING)
        return;
    switch (f.type) {
    case TN_MSG_HELLO:
        on_hello(c, c->body, f.size);
        break;
    case TN_MSG_NEXT:
        on_next(c, f.id);
        break;
    case TN_MSG_GET:
        on_get(c, f.id, c->body, f.size);
        break;
    case TN_MSG_BEGIN:
        update_begin(c, &f, c->body);
        break;
    case TN_MSG_PUT:
        update_put(c, &f, c->body);
        break;
    case TN_MSG_END:
        update_end(c, &f);
        break;
    default:
        tn_log(TN_LOG_DEBUG, "server", "client %s said good-bye", c->id);
        close_how(c, TN_EV_LEAVE);
        break;
    }
}

static void on_sent(session *c, const tn_err *err) {
    out_frame *o = c->out_head;

    c->tx_busy = false;
    c->out_head = o->next;
    if (c->out_head == NULL)
        c->out_tail = NULL;
    c->srv->bytes += TN_FRAME_BYTES + o->frame.size;
    free_out(o);
    c->last_sent = tn_now();
    if (c->state == SESSION_CLOSED)
        return;
    if (err->code != TN_OK)
        session_close(c);
    else if (c->out_head != NULL)
        send_head(c);
    else if (c->state == SESSION_ENDING && !c->rx_busy)
        drain(c);
    else if (c->state == SESSION_ENDING)
        session_close(c); /* a receive is armed that nothing limits; nothing was left unread, so nothing is lost */
}

void session_event(session *c, event *e) {
    switch (e->kind) {
    case EV_MESSAGE:
        c->rx_busy = false;
        c->srv->bytes += TN_FRAME_BYTES + c->in.size;
        if (c->state < SESSION_ENDING)
            on_message(c);
        drop_body(c);
        if (c->state < SESSION_ENDING)
            arm(c);
        else if (c->state == SESSION_ENDING && !c->tx_busy)
            drain(c);
        break;
    case EV_RECV_BAD:
        c->rx_busy = false;
        drop_body(c);
        session_end(c, e->err.code, "%s", e->err.msg);
        break;
    case EV_RECV_FAIL:
        c->rx_busy = false;
        drop_body(c);
        if (c->state == SESSION_HELLO)
            srv_log_refusal(c->srv, "%s did not finish its handshake: %s", tn_tx_conn_peer(c->conn), e->err.msg);
        else if (c->state < SESSION_ENDING)
            tn_log(TN_LOG_DEBUG, "server", "client %s: %s", c->id, e->err.msg);
        session_close(c);
        break;
    case EV_SENT:
        on_sent(c, &e->err);
        break;
    case EV_CONN: /* a listener's */
        break;
    }
    free_if_idle(c);
}

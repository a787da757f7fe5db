/* The TCP store: one process holds the keys, the others ask it. For trusted networks: whoever reaches the
 * port may read and write (as with torch's TCPStore).
 *
 * Requests and answers are frames (transport.h). A request is SET, GET or ADD with the key (u16 length,
 * bytes) and then the value or the delta (u64) as its body; the answer carries the same id: VALUE (body: the
 * value; the counter as u64; nothing for SET) or REFUSAL (flags: the code). A GET of a key that is not there
 * is answered when it is set.
 *
 * The server runs in the transport's callbacks: no thread of its own, and a waiting client costs memory
 * only. The client blocks; one request at a time on one connection, which is made anew after a time-out. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/wire.h"
#include "dist/store.h"

#define BODY_MAX (2 + TNI_STORE_KEY_MAX + TNI_STORE_VALUE_MAX)
#define STORE_MAX ((size_t)256 << 20) /* bytes of keys and values */
#define MAX_CLIENTS 8192
#define LINGER (5 * TN_SECOND) /* for clients to finish, when the server is released */
#define BUCKETS 1024
#define PAUSE_MIN (5 * TN_MS)
#define PAUSE_MAX (200 * TN_MS)

enum { SET = 1, GET = 2, ADD = 3, VALUE = 16, REFUSAL = 17 };

/* ---- Server ---- */

typedef struct entry {
    struct entry *next;
    char *key;
    uint8_t *value;
    size_t n;
} entry;

typedef struct server server;

typedef struct client {
    struct client *next;
    server *s;
    tn_tx_conn *conn;
    tn_frame in, out;
    uint8_t *body, *answer;
    char *waits_for; /* the key of a GET that is not answered yet */
    uint64_t waits_id;
    bool reading, sending, gone;
    bool asked; /* a request is in `body`, and the answer to the one before is still being sent */
} client;

struct server {
    pthread_mutex_t lock;
    pthread_cond_t idle;
    tn_tx_listener *listener;
    entry *buckets[BUCKETS];
    size_t bytes;
    client *clients;
    size_t nclients;
    int inflight;
    bool closing;
};

static void on_request(void *arg, const tn_err *err);
static void on_answered(void *arg, const tn_err *err);
static void on_body(void *arg, const tn_err *err);

static entry **find(server *s, const char *key) {
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    entry **at;
    const char *p;

    for (p = key; *p != '\0'; p++)
        h = (h ^ (uint8_t)*p) * 1099511628211u;
    for (at = &s->buckets[h % BUCKETS]; *at != NULL && strcmp((*at)->key, key) != 0; at = &(*at)->next)
        ;
    return at;
}

static tn_code put(server *s, const char *key, const uint8_t *value, size_t n) {
    entry **at = find(s, key), *e = *at;
    uint8_t *copy = malloc(n + 1);
    size_t old = e != NULL ? e->n : 0, more = e != NULL ? 0 : strlen(key) + sizeof(entry);

    if (copy == NULL || s->bytes - old + n + more > STORE_MAX) {
        free(copy);
        return copy == NULL ? TN_ENOMEM : TN_ETOOBIG;
    }
    if (e == NULL) {
        e = calloc(1, sizeof(*e));
        if (e == NULL || (e->key = strdup(key)) == NULL) {
            free(e);
            free(copy);
            return TN_ENOMEM;
        }
        *at = e;
    }
    if (n > 0)
        memcpy(copy, value, n);
    free(e->value);
    e->value = copy;
    e->n = n;
    s->bytes += n + more - old;
    return TN_OK;
}

/* Under the lock: a client goes when nothing of it is under way. */
static void drop_if_gone(client *c) {
    server *s = c->s;
    client **at = &s->clients;

    if (!c->gone || c->reading || c->sending)
        return;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    s->nclients--;
    tn_tx_conn_unref(c->conn);
    free(c->body);
    free(c->answer);
    free(c->waits_for);
    free(c);
}

static void hang_up(client *c) {
    c->gone = true;
    tn_tx_close(c->conn);
}

static void begin(server *s) { s->inflight++; }

static void end(server *s) {
    if (--s->inflight == 0 || s->nclients == 0)
        pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

static void read_next(client *c) {
    c->reading = true;
    begin(c->s);
    tn_frame_recv(c->conn, &c->in, BODY_MAX, TN_FOREVER, on_request, c);
}

static void answer(client *c, uint64_t id, tn_code code, const uint8_t *value, size_t n) {
    tn_iov body;

    if (c->gone)
        return;
    c->out = (tn_frame){.type = code == TN_OK ? VALUE : REFUSAL, .flags = (uint16_t)code, .id = id};
    if (code == TN_OK && n > 0) {
        c->answer = malloc(n);
        if (c->answer != NULL) {
            memcpy(c->answer, value, n);
            c->out.size = n;
        } else {
            c->out.type = REFUSAL;
            c->out.flags = TN_ENOMEM;
        }
    }
    body = (tn_iov){c->answer, (size_t)c->out.size};
    c->sending = true;
    begin(c->s);
    tn_frame_send(c->conn, &c->out, &body, body.n > 0 ? 1 : 0, TN_FOREVER, on_answered, c);
}

/* Those who wait for the key get it. */
static void serve_waiting(server *s, const char *key) {
    const entry *e = *find(s, key);
    client *c;

    assert(e != NULL);
    for (c = s->clients; c != NULL; c = c->next) {
        if (c->waits_for != NULL && strcmp(c->waits_for, key) == 0) {
            free(c->waits_for);
            c->waits_for = NULL;
            answer(c, c->waits_id, TN_OK, e->value, e->n);
        }
    }
}

static void serve(client *c) {
    server *s = c->s;
    tn_rd r = tn_rd_init(c->body, (size_t)c->in.size);
    size_t n = tn_rd_u16(&r);
    const uint8_t *p = tn_rd_take(&r, n);
    char key[TNI_STORE_KEY_MAX + 1];
    const entry *e;
    uint8_t bytes[8];
    int64_t value;
    tn_code code = TN_OK;

    if (p == NULL || n < 1 || n > TNI_STORE_KEY_MAX || memchr(p, '\0', n) != NULL) {
        hang_up(c);
        return;
    }
    memcpy(key, p, n);
    key[n] = '\0';
    e = *find(s, key);
    if (c->in.type == SET) {
        code = put(s, key, r.p, r.left);
        answer(c, c->in.id, code, NULL, 0);
    } else if (c->in.type == ADD) {
        int64_t delta = (int64_t)tn_rd_u64(&r);

        code = tn_rd_end(&r);
        if (code == TN_OK)
            code = tni_store_add(key, e != NULL ? e->value : NULL, e != NULL ? e->n : 0, delta, bytes, &value,
                                 NULL);
        if (code == TN_OK)
            code = put(s, key, bytes, sizeof(bytes));
        answer(c, c->in.id, code, bytes, sizeof(bytes));
    } else if (c->in.type == GET && e != NULL) {
        answer(c, c->in.id, TN_OK, e->value, e->n);
    } else if (c->in.type == GET) {
        c->waits_for = strdup(key);
        c->waits_id = c->in.id;
        if (c->waits_for == NULL)
            answer(c, c->in.id, TN_ENOMEM, NULL, 0);
    } else {
        hang_up(c);
    }
    if ((c->in.type == SET || c->in.type == ADD) && code == TN_OK)
        serve_waiting(s, key);
}

/* Serves the request that is in, unless the answer before it is still on its way out: a client may have that,
 * and ask again, before our callback has run. */
static void take_request(client *c) {
    if (c->gone || c->sending) {
        c->asked = !c->gone;
        return;
    }
    c->asked = false;
    if (c->waits_for == NULL)
        serve(c);
    else /* a client that asks again while it waits is not one of ours */
        hang_up(c);
    free(c->body);
    c->body = NULL;
    if (!c->gone)
        read_next(c);
}

static void on_answered(void *arg, const tn_err *err) {
    client *c = arg;
    server *s = c->s;

    pthread_mutex_lock(&s->lock);
    c->sending = false;
    free(c->answer);
    c->answer = NULL;
    if (err->code != TN_OK)
        hang_up(c);
    else if (c->asked)
        take_request(c);
    drop_if_gone(c);
    end(s);
}

static void on_body(void *arg, const tn_err *err) {
    client *c = arg;
    server *s = c->s;

    pthread_mutex_lock(&s->lock);
    c->reading = false;
    if (err->code == TN_OK)
        take_request(c);
    else
        hang_up(c);
    drop_if_gone(c);
    end(s);
}

static void on_request(void *arg, const tn_err *err) {
    client *c = arg;
    server *s = c->s;
    tn_iov piece;

    pthread_mutex_lock(&s->lock);
    c->reading = false;
    if (err->code != TN_OK || c->gone || c->in.size < 3 || (c->body = malloc((size_t)c->in.size)) == NULL) {
        hang_up(c);
    } else {
        piece = (tn_iov){c->body, (size_t)c->in.size};
        c->reading = true;
        begin(s);
        tn_tx_recv(c->conn, &piece, 1, TN_FOREVER, on_body, c);
    }
    drop_if_gone(c);
    end(s);
}

static void on_accept(void *arg, tn_tx_conn *conn, const tn_err *err) {
    server *s = arg;
    client *c = NULL;

    pthread_mutex_lock(&s->lock);
    if (conn != NULL && !s->closing && s->nclients < MAX_CLIENTS)
        c = calloc(1, sizeof(*c));
    if (c != NULL) {
        *c = (client){.next = s->clients, .s = s, .conn = conn};
        s->clients = c;
        s->nclients++;
        read_next(c);
    } else if (conn != NULL) {
        tn_tx_conn_unref(conn);
    }
    if (!s->closing && err->code != TN_ECANCELED) {
        begin(s);
        tn_tx_accept(s->listener, on_accept, s);
    }
    end(s);
}

static void server_free(server *s) {
    int i;

    if (s->listener != NULL)
        tn_tx_listener_free(s->listener);
    for (i = 0; i < BUCKETS; i++) {
        while (s->buckets[i] != NULL) {
            entry *e = s->buckets[i];

            s->buckets[i] = e->next;
            free(e->key);
            free(e->value);
            free(e);
        }
    }
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Clients that are still reading get LINGER to finish. */
static void server_stop(server *s) {
    int64_t deadline = tn_deadline_after(tn_now(), LINGER);
    client *c;

    pthread_mutex_lock(&s->lock);
    while (s->nclients > 0 && tn_now() < deadline)
        (void)tn_cond_wait_until(&s->idle, &s->lock, deadline);
    s->closing = true;
    if (s->listener != NULL)
        tn_tx_listener_close(s->listener);
    for (c = s->clients; c != NULL; c = c->next)
        hang_up(c);
    while (s->inflight > 0)
        (void)tn_cond_wait_until(&s->idle, &s->lock, TN_FOREVER);
    pthread_mutex_unlock(&s->lock);
    server_free(s);
}

static tn_code server_new(server **out, const char *url, tn_err *err) {
    server *s = calloc(1, sizeof(*s));
    tn_code code;

    if (s == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a store");
    pthread_mutex_init(&s->lock, NULL);
    tn_cond_init(&s->idle);
    code = tn_tx_listen(&s->listener, url, NULL, err);
    if (code != TN_OK) {
        server_free(s);
        return code;
    }
    pthread_mutex_lock(&s->lock);
    begin(s);
    tn_tx_accept(s->listener, on_accept, s);
    pthread_mutex_unlock(&s->lock);
    *out = s;
    return TN_OK;
}

/* ---- Client ---- */

typedef struct tcp_store {
    pthread_mutex_t lock; /* one request at a time */
    char *url;
    int port;
    int64_t timeout_ns;
    tn_tx_conn *conn; /* NULL: to be made anew */
    uint64_t id;
    server *server; /* of this process, or NULL */
} tcp_store;

static int64_t left(int64_t deadline) {
    int64_t now = tn_now();

    if (deadline == TN_FOREVER)
        return TN_FOREVER;
    return now < deadline ? deadline - now : 0;
}

static void disconnect(tcp_store *s) {
    if (s->conn != NULL)
        tn_tx_conn_unref(s->conn);
    s->conn = NULL;
}

/* The server may come up later than its clients. */
static tn_code connect_until(tcp_store *s, int64_t deadline, tn_err *err) {
    int64_t began = tn_now(), pause = PAUSE_MIN;
    tn_err last = TN_ERR_INIT;

    while (s->conn == NULL) {
        struct timespec ts = {.tv_nsec = pause};
        tn_code code = tn_tx_dial_wait(&s->conn, s->url, NULL, left(deadline), &last);

        if (code == TN_OK)
            break;
        if (left(deadline) <= pause || (code != TN_EPEER && code != TN_ETIMEDOUT && code != TN_EIO))
            return tn_fail(err, code, "the store at %s did not answer within %.3f s: %.300s", s->url,
                           (double)(tn_now() - began) / 1e9, last.msg);
        nanosleep(&ts, NULL);
        pause = pause * 2 < PAUSE_MAX ? pause * 2 : PAUSE_MAX;
    }
    return TN_OK;
}

/* One request and its answer. *value (fresh, may be NULL for none) and *n are set on success. */
static tn_code ask(tcp_store *s, uint8_t type, const char *key, const void *data, size_t size,
                   int64_t timeout_ns, uint8_t **value, size_t *n, tn_err *err) {
    int64_t began = tn_now(), deadline = tn_deadline_after(began, timeout_ns);
    tn_wr w = tn_wr_init(BODY_MAX);
    tn_frame f = {.type = type}, reply = {0};
    tn_iov piece;
    tn_code code = tni_store_check(key, size, err);

    if (code != TN_OK)
        return code;
    tn_wr_u16(&w, (uint16_t)strlen(key));
    tn_wr_bytes(&w, key, strlen(key));
    tn_wr_bytes(&w, data, size);
    if (w.fail != TN_OK) {
        tn_wr_release(&w);
        return tn_fail(err, w.fail, "no memory for a request to the store");
    }
    pthread_mutex_lock(&s->lock);
    code = connect_until(s, tn_deadline_after(began, timeout_ns < s->timeout_ns ? s->timeout_ns : timeout_ns),
                         err);
    if (code != TN_OK)
        goto out;
    f.id = ++s->id;
    f.size = w.len;
    piece = (tn_iov){w.p, w.len};
    code = tn_frame_send_wait(s->conn, &f, &piece, 1, s->timeout_ns, err);
    if (code == TN_OK)
        code = tn_frame_recv_wait(s->conn, &reply, TNI_STORE_VALUE_MAX, left(deadline), err);
    if (code == TN_ETIMEDOUT && type == GET)
        code = tni_store_timeout(key, tn_now() - began, err);
    if (code == TN_OK && reply.type == REFUSAL && reply.id == f.id && reply.size == 0)
        code = tn_fail(err, reply.flags != TN_OK && reply.flags <= TN_EINTERNAL ? (tn_code)reply.flags
                                                                                : TN_EPROTO,
                       "the store refused key '%s': %s", key, tn_code_text((tn_code)reply.flags));
    else if (code == TN_OK && (reply.type != VALUE || reply.id != f.id))
        code = tn_fail(err, TN_EPROTO, "%s does not answer like a store", s->url);
    if (code == TN_OK) {
        uint8_t *p = malloc((size_t)reply.size + 1);

        if (p == NULL)
            code = tn_fail(err, TN_ENOMEM, "no memory for key '%s' of the store", key);
        piece = (tn_iov){p, (size_t)reply.size};
        if (code == TN_OK && reply.size > 0)
            code = tn_tx_recv_wait(s->conn, &piece, 1, s->timeout_ns, err);
        if (code == TN_OK && value != NULL) {
            *value = p;
            *n = (size_t)reply.size;
        } else {
            free(p);
        }
    }
    if (code != TN_OK)
        disconnect(s);
out:
    pthread_mutex_unlock(&s->lock);
    tn_wr_release(&w);
    return code;
}

static tn_code tcp_set(void *arg, const char *key, const void *value, size_t n, tn_err *err) {
    tcp_store *s = arg;

    return ask(s, SET, key, value, n, s->timeout_ns, NULL, NULL, err);
}

static tn_code tcp_get(void *arg, const char *key, int64_t timeout_ns, uint8_t **value, size_t *n,
                       tn_err *err) {
    /* A look needs the time of a round trip all the same. */
    return ask(arg, GET, key, NULL, 0, timeout_ns > 500 * TN_MS ? timeout_ns : 500 * TN_MS, value, n, err);
}

static tn_code tcp_add(void *arg, const char *key, int64_t delta, int64_t *now, tn_err *err) {
    tcp_store *s = arg;
    uint8_t bytes[8], *value = NULL;
    tn_wr w = tn_wr_fixed(bytes, sizeof(bytes));
    size_t n = 0;
    tn_code code;

    tn_wr_u64(&w, (uint64_t)delta);
    code = ask(s, ADD, key, bytes, sizeof(bytes), s->timeout_ns, &value, &n, err);
    if (code == TN_OK) {
        tn_rd r = tn_rd_init(value, n);

        *now = (int64_t)tn_rd_u64(&r);
        if (tn_rd_end(&r) != TN_OK)
            code = tn_fail(err, TN_EPROTO, "%s does not answer like a store", s->url);
    }
    free(value);
    return code;
}

static void tcp_release(void *arg) {
    tcp_store *s = arg;

    disconnect(s);
    if (s->server != NULL)
        server_stop(s->server);
    pthread_mutex_destroy(&s->lock);
    free(s->url);
    free(s);
}

int tn_store_tcp_port(const tn_store *s) {
    const tcp_store *t = s->arg;

    return s->set == tcp_set ? t->port : -1;
}

tn_code tn_store_tcp(tn_store *out, const char *host, int port, bool is_server, int64_t timeout_ns,
                     tn_err *err) {
    bool six = host != NULL && strchr(host, ':') != NULL && host[0] != '[';
    char url[300];
    const char *colon;
    tcp_store *s;
    tn_code code;

    if (host == NULL || host[0] == '\0' || port < 0 || port > 65535 || (port == 0 && !is_server) ||
        timeout_ns <= 0)
        return tn_fail(err, TN_EINVAL,
                       "a TCP store needs a host, a port (0 only at the server) and a time-out");
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a store");
    pthread_mutex_init(&s->lock, NULL);
    s->timeout_ns = timeout_ns;
    snprintf(url, sizeof(url), "tcp://%s%.250s%s:%d", six ? "[" : "", host, six ? "]" : "", port);
    code = is_server ? server_new(&s->server, url, err) : tn_tx_url_check(url, err);
    if (code == TN_OK) {
        s->url = strdup(is_server ? tn_tx_listener_url(s->server->listener) : url);
        if (s->url == NULL)
            code = tn_fail(err, TN_ENOMEM, "no memory for a store");
    }
    if (code == TN_OK) {
        colon = strrchr(s->url, ':');
        s->port = colon != NULL ? (int)strtol(colon + 1, NULL, 10) : -1;
        code = connect_until(s, tn_deadline_after(tn_now(), timeout_ns), err);
    }
    if (code != TN_OK) {
        tcp_release(s);
        return code;
    }
    *out = (tn_store){.arg = s, .set = tcp_set, .get = tcp_get, .add = tcp_add, .release = tcp_release};
    return TN_OK;
}

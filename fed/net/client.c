/* The client's side of the protocol: blocking calls over a link that may break at any time.
 *
 * Each call is a loop: be connected, say what is wanted, do it; when the link breaks, begin again with what
 * has already been moved. What ends a call for good is what the server refuses (an ERROR message) and a
 * server that stays away for longer than connect_timeout_ns.
 *
 * A NEXT may stay open over several calls, because the caller waits in slices. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "fed/net/internal.h"

#define CONNECT_TIMEOUT_NS (60 * TN_SECOND)
#define ATTEMPT_NS (10 * TN_SECOND)  /* one attempt to connect, with its handshake */
#define REPLY_NS (120 * TN_SECOND)   /* a server may aggregate, or sync to a slow disk, before it answers */
#define SILENCE_NS (100 * TN_SECOND) /* the server says something every 30 s to who waits for a task */
#define BACKOFF_FIRST_NS (100 * TN_MS)
#define BACKOFF_LAST_NS (5 * TN_SECOND)
#define NOTICE_NS (30 * TN_SECOND)
#define SETTLED_NS (30 * TN_SECOND) /* a connection that held that long was a good one, */
#define PROVEN_NS TN_SECOND         /* and so was this, if it answered a request */
#define MAX_FLAPS 20                /* short connections in a row */
#define TRIES 3                     /* of a transfer whose hash came out wrong */

struct tn_client {
    char *url, *cert, *key_file, *ca, *server_name;
    bool tls;
    int64_t connect_timeout;
    void (*notice)(void *arg, const char *text);
    void *arg;

    tn_key key;
    uint8_t cert_hash[32];
    uint8_t pinned[TN_KEY_BYTES];
    bool is_pinned;
    char id[TN_ID_MAX + 1]; /* the one asked for; "" with tls */

    tni_chan link;
    bool link_ready;
    tn_msg_welcome welcome; /* of the first connection; the later ones agree with it */
    bool joined;
    uint64_t request;   /* number of the last request on this connection */
    uint64_t open_next; /* the NEXT that has no answer yet; 0: none */
    int64_t heard;      /* when the server was last heard */
    uint8_t *body;      /* TN_MSG_MAX_SMALL bytes */

    /* The server is away. */
    bool away, told;
    int64_t away_since, next_try, next_notice, backoff, connected_at;
    int flaps;
    bool proven; /* the connection answered a request */
    tn_rng jitter;
};

/* ---- Making ---- */

static tn_code copy_text(char **to, const char *from, tn_err *err) {
    if (from == NULL)
        return TN_OK;
    *to = strdup(from);
    return *to != NULL ? TN_OK : tn_fail(err, TN_ENOMEM, "no memory for a client");
}

static tn_code check_cfg(const tn_client_cfg *cfg, tn_err *err) {
    tn_code code;

    if (cfg->url == NULL)
        return tn_fail(err, TN_EINVAL, "a client needs the server's URL");
    if ((code = tn_tx_url_check(cfg->url, err)) != TN_OK)
        return code;
    if (tn_tx_url_is_tls(cfg->url)) {
        if (cfg->tls.cert == NULL || cfg->tls.key == NULL || cfg->tls.ca == NULL || cfg->identity == NULL)
            return tn_fail(err, TN_EINVAL,
                           "%s needs a certificate, its key, the CA and an identity; `torchnative-ctl cert issue` "
                           "makes them",
                           cfg->url);
    } else if (!tn_tx_url_is_local(cfg->url) && !cfg->insecure) {
        return tn_fail(err, TN_EINVAL,
                       "%s is neither encrypted nor on this host: use tls+tcp://, or allow it with `insecure`",
                       cfg->url);
    }
    if (cfg->client_id != NULL && !tn_id_valid(cfg->client_id))
        return tn_fail(err, TN_EINVAL,
                       "\"%.80s\" is not a client id: 1 to 64 letters, digits, '.', '-' and '_', the first a "
                       "letter or digit",
                       cfg->client_id);
    if (cfg->connect_timeout_ns < 0)
        return tn_fail(err, TN_EINVAL, "connect_timeout_ns is negative");
    return TN_OK;
}

static tn_code make_identity(tn_client *c, const tn_client_cfg *cfg, tn_err *err) {
    tn_code code;

    if (cfg->identity != NULL)
        code = tn_key_load(&c->key, cfg->identity, err);
    else
        code = tn_key_new(&c->key, err); /* for this client's life: without TLS the id is all there is */
    if (code != TN_OK)
        return code;
    if (cfg->server_key != NULL) {
        if ((code = tn_unhex(cfg->server_key, c->pinned, sizeof(c->pinned), err)) != TN_OK)
            return err != NULL ? tn_ctx(err, "the server's key") : code;
        c->is_pinned = true;
    }
    if (c->tls)
        return tn_cert_inspect(cfg->tls.cert, c->cert_hash, NULL, 0, NULL, err);
    if (cfg->client_id != NULL)
        snprintf(c->id, sizeof(c->id), "%s", cfg->client_id);
    else {
        uint8_t random[8];

        tn_random_bytes(random, sizeof(random));
        c->id[0] = 'c';
        tn_hex(random, sizeof(random), c->id + 1);
    }
    return TN_OK;
}

tn_code tn_client_new(tn_client **out, const tn_client_cfg *cfg, tn_err *err) {
    tn_client *c = NULL;
    tn_tx_opts opts;
    uint64_t seed;
    tn_code code = check_cfg(cfg, err);

    *out = NULL;
    if (code != TN_OK)
        return code;
    if ((code = tn_random_init(err)) != TN_OK)
        return code;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a client");
    c->tls = tn_tx_url_is_tls(cfg->url);
    c->connect_timeout = cfg->connect_timeout_ns != 0 ? cfg->connect_timeout_ns : CONNECT_TIMEOUT_NS;
    c->notice = cfg->notice;
    c->arg = cfg->arg;
    tn_random_bytes(&seed, sizeof(seed));
    c->jitter = tn_rng_seed(seed);
    c->body = malloc(TN_MSG_MAX_SMALL);
    code = c->body != NULL ? TN_OK : tn_fail(err, TN_ENOMEM, "no memory for a client");
    if (code == TN_OK)
        code = copy_text(&c->url, cfg->url, err);
    if (code == TN_OK)
        code = copy_text(&c->cert, cfg->tls.cert, err);
    if (code == TN_OK)
        code = copy_text(&c->key_file, cfg->tls.key, err);
    if (code == TN_OK)
        code = copy_text(&c->ca, cfg->tls.ca, err);
    if (code == TN_OK)
        code = copy_text(&c->server_name, cfg->tls.server_name, err);
    if (code == TN_OK)
        code = make_identity(c, cfg, err);
    if (code == TN_OK) {
        opts = (tn_tx_opts){c->cert, c->key_file, c->ca, c->server_name};
        c->link_ready = true;
        code = tni_chan_init(&c->link, c->url, c->tls ? &opts : NULL, err);
    }
    if (code != TN_OK)
        tn_client_free(c);
    else
        *out = c;
    return code;
}

void tn_client_cancel(tn_client *c) { tni_chan_cancel(&c->link); }

const tn_layout *tn_client_layout(const tn_client *c) { return c->joined ? &c->welcome.layout : NULL; }
const tn_msg_welcome *tn_client_welcome(const tn_client *c) { return c->joined ? &c->welcome : NULL; }
uint64_t tn_client_bytes_sent(const tn_client *c) { return atomic_load(&c->link.sent); }
uint64_t tn_client_bytes_received(const tn_client *c) { return atomic_load(&c->link.received); }

/* ---- Messages ---- */

/* Sets when to try again. */
static void back_off(tn_client *c, int64_t now) {
    c->next_try = now + (int64_t)((0.5 + tn_rng_unit(&c->jitter)) * (double)c->backoff);
    c->backoff = c->backoff * 2 < BACKOFF_LAST_NS ? c->backoff * 2 : BACKOFF_LAST_NS;
}

/* The link broke or was given up. After a good connection the search for the server starts anew; a server
 * that accepts and breaks again and again counts as away, and is met with the growing pauses. */
static void lost(tn_client *c) {
    int64_t now = tn_now(), lived = now - c->connected_at;

    tni_chan_drop(&c->link);
    c->open_next = 0;
    if (!c->away || lived >= SETTLED_NS || (c->proven && lived >= PROVEN_NS)) {
        c->away = true;
        c->away_since = c->next_try = c->next_notice = now;
        c->backoff = BACKOFF_FIRST_NS;
        c->flaps = 0;
    } else {
        c->flaps++;
        back_off(c, now);
    }
}

/* What reconnecting may cure. */
static bool is_transient(tn_code code) { return code == TN_EPEER || code == TN_ETIMEDOUT || code == TN_EIO; }

static tn_code send_small(tn_client *c, uint8_t type, uint64_t id, const tn_wr *w, tn_err *err) {
    tn_frame f = {.type = type, .id = id};
    tn_iov iov = {w != NULL ? w->p : NULL, w != NULL ? w->len : 0};

    if (w != NULL && w->fail != TN_OK)
        return tn_fail(err, w->fail, "%s does not fit into a message", tn_msg_name(type));
    return tni_chan_send(&c->link, &f, &iov, w != NULL ? 1 : 0, TNI_PROGRESS_NS, err);
}

/* Reads the body of a small message into c->body. */
static tn_code small_body(tn_client *c, const tn_frame *f, tn_err *err) {
    if (f->size > TN_MSG_MAX_SMALL)
        return tn_fail(err, TN_EPROTO, "the server sent %s of %" PRIu64 " bytes; at most %u are allowed",
                       tn_msg_name(f->type), f->size, TN_MSG_MAX_SMALL);
    return tni_chan_body(&c->link, c->body, f->size, err);
}

/* An ERROR: its code and sentence become ours. *fatal: it ends the session, not only the request. */
static tn_code refusal(tn_client *c, const tn_frame *f, bool *fatal, tn_err *err) {
    tn_msg_error m;
    tn_code code = small_body(c, f, err);

    *fatal = true;
    if (code != TN_OK || (code = tn_msg_error_decode(&m, c->body, f->size, err)) != TN_OK)
        return code;
    *fatal = f->id == 0;
    return tn_fail(err, m.code, "%s", m.text);
}

static tn_code unexpected(const tn_frame *f, const char *instead_of, tn_err *err) {
    return tn_fail(err, TN_EPROTO, "the server sent %s where %s was due", tn_msg_name(f->type), instead_of);
}

/* ---- Connecting ---- */

static tn_code send_hello(tn_client *c, const tn_msg_challenge *challenge, tn_msg_hello *hello,
                          uint8_t transcript[TN_HASH_BYTES], tn_err *err) {
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);
    tn_code code;

    memset(hello, 0, sizeof(*hello));
    hello->version = TN_PROTOCOL;
    tn_random_bytes(hello->nonce, sizeof(hello->nonce));
    memcpy(hello->key, c->key.pk, sizeof(hello->key));
    memcpy(hello->cert, c->cert_hash, sizeof(hello->cert));
    snprintf(hello->id, sizeof(hello->id), "%s", c->id);
    tn_msg_transcript(challenge, hello, transcript);
    code = tn_key_sign(&c->key, TN_HELLO_CLIENT, transcript, TN_HASH_BYTES, hello->sig, err);
    if (code == TN_OK) {
        tn_msg_hello_encode(hello, &w);
        code = send_small(c, TN_MSG_HELLO, 0, &w, err);
    }
    tn_wr_release(&w);
    return code;
}

static tn_code check_challenge(const tn_client *c, const tn_msg_challenge *m, tn_err *err) {
    if (m->tls != c->tls)
        return tn_fail(err, TN_EAUTH, "the server says that this connection is %s TLS, and it is not",
                       m->tls ? "under" : "without");
    if (c->is_pinned && memcmp(m->key, c->pinned, sizeof(c->pinned)) != 0)
        return tn_fail(err, TN_EAUTH, "the server has another key than the one asked for");
    return TN_OK;
}

static tn_code read_challenge(tn_client *c, int64_t deadline, tn_msg_challenge *m, tn_err *err) {
    tn_frame f;
    bool fatal;
    tn_code code = tni_chan_header(&c->link, deadline, &f, err);

    if (code != TN_OK)
        return code;
    if (f.type == TN_MSG_ERROR)
        return refusal(c, &f, &fatal, err);
    if (f.type != TN_MSG_CHALLENGE)
        return unexpected(&f, "CHALLENGE", err);
    if ((code = small_body(c, &f, err)) == TN_OK)
        code = tn_msg_challenge_decode(m, c->body, f.size, err);
    return code;
}

static tn_code read_welcome(tn_client *c, int64_t deadline, tn_msg_welcome *m, tn_err *err) {
    uint8_t *body = NULL;
    tn_frame f;
    bool fatal;
    tn_code code = tni_chan_header(&c->link, deadline, &f, err);

    if (code != TN_OK)
        return code;
    if (f.type == TN_MSG_ERROR)
        return refusal(c, &f, &fatal, err);
    if (f.type != TN_MSG_WELCOME || f.size == 0)
        return unexpected(&f, "WELCOME", err);
    body = malloc(f.size); /* the header was bounded by TN_MSG_MAX_META */
    if (body == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a WELCOME of %" PRIu64 " bytes", f.size);
    if ((code = tni_chan_body(&c->link, body, f.size, err)) == TN_OK)
        code = tn_msg_welcome_decode(m, body, f.size, err);
    free(body);
    return code;
}

/* The first welcome is kept; a later one has to be of the same job. */
static tn_code take_welcome(tn_client *c, tn_msg_welcome *m, tn_err *err) {
    tn_code code = TN_OK;

    if (!c->joined) {
        c->welcome = *m;
        memset(m, 0, sizeof(*m));
        c->joined = true;
        return TN_OK;
    }
    code = tn_layout_same(&c->welcome.layout, "the model so far", &m->layout, "the server's model now", err);
    if (code == TN_OK && strcmp(m->id, c->welcome.id) != 0)
        code = tn_fail(err, TN_EAUTH, "the server calls this client %s now, and %s before", m->id, c->welcome.id);
    if (code == TN_OK) {
        c->welcome.rounds = m->rounds;
        c->welcome.chunk = m->chunk;
        c->welcome.resume_seconds = m->resume_seconds;
    }
    return code;
}

/* One attempt. */
static tn_code connect_once(tn_client *c, tn_err *err) {
    int64_t deadline = tn_deadline_after(tn_now(), ATTEMPT_NS);
    uint8_t transcript[TN_HASH_BYTES];
    tn_msg_challenge challenge;
    tn_msg_hello hello;
    tn_msg_welcome welcome;
    tn_code code = tni_chan_dial(&c->link, ATTEMPT_NS, err);

    memset(&challenge, 0, sizeof(challenge));
    memset(&welcome, 0, sizeof(welcome));
    if (code == TN_OK)
        code = read_challenge(c, deadline, &challenge, err);
    if (code == TN_OK)
        code = check_challenge(c, &challenge, err);
    if (code == TN_OK)
        code = send_hello(c, &challenge, &hello, transcript, err);
    if (code == TN_OK)
        code = read_welcome(c, deadline, &welcome, err);
    if (code == TN_OK)
        code = tn_key_verify(challenge.key, TN_HELLO_SERVER, transcript, sizeof(transcript), welcome.sig, err);
    if (code == TN_OK)
        code = take_welcome(c, &welcome, err);
    tn_msg_welcome_release(&welcome);
    if (code != TN_OK)
        tni_chan_drop(&c->link);
    return code;
}

static void tell(const tn_client *c, const char *text) {
    if (c->notice != NULL)
        c->notice(c->arg, text);
}

/* One attempt failed and another may not: says so now and then, and sets when to try again. */
static tn_code try_later(tn_client *c, const tn_err *why, tn_err *err) {
    int64_t now = tn_now(), last = tn_deadline_after(c->away_since, c->connect_timeout);
    char text[sizeof(why->msg) + 400];

    if (now >= last)
        return tn_fail(err, TN_EPEER, "the server at %s could not be reached for %.3g s: %s", c->url,
                       (double)(now - c->away_since) / 1e9, why->msg);
    if (now >= c->next_notice) {
        snprintf(text, sizeof(text), "waiting for the server at %s, up to %.3g s more: %s", c->url,
                 (double)(last - now) / 1e9, why->msg);
        tell(c, text);
        c->told = true;
        c->next_notice = tn_deadline_after(now, NOTICE_NS);
    }
    back_off(c, now);
    if (c->next_try > last)
        c->next_try = last;
    return TN_OK;
}

/* Connects, and keeps trying; TN_ETIMEDOUT at the deadline, and the next call goes on where it was. (An
 * attempt under way is not cut short: it may last ATTEMPT_NS beyond the deadline.) */
static tn_code be_connected(tn_client *c, int64_t deadline, tn_err *err) {
    tn_err why = TN_ERR_INIT;
    tn_code code = TN_OK;

    if (c->link.conn != NULL)
        return TN_OK;
    if (!c->away)
        lost(c); /* the first time */
    if (c->flaps > MAX_FLAPS)
        return tn_fail(err, TN_EPEER, "the server at %s accepts connections and breaks them again, %d times", c->url,
                       c->flaps);
    for (;;) {
        if (tn_now() < c->next_try) {
            code = tni_chan_pause(&c->link, c->next_try < deadline ? c->next_try : deadline, err);
            if (code != TN_OK)
                return code;
            if (tn_now() < c->next_try)
                return tn_fail(err, TN_ETIMEDOUT, "the server at %s is away", c->url);
        }
        code = connect_once(c, &why);
        if (code == TN_OK)
            break;
        /* TN_EBUSY before the welcome: it has no room for another connection just now. */
        if (!is_transient(code) && code != TN_EBUSY)
            return tn_fail(err, code, "%s: %s", c->url, why.msg);
        if ((code = try_later(c, &why, err)) != TN_OK)
            return code;
    }
    c->connected_at = c->heard = tn_now();
    c->request = 0;
    c->proven = false;
    if (c->told)
        tell(c, "connected to the server");
    c->told = false;
    return TN_OK;
}

tn_code tn_client_join(tn_client *c, const tn_layout *layout, tn_err *err) {
    tn_code code = be_connected(c, TN_FOREVER, err);

    if (code == TN_OK && layout != NULL)
        code = tn_layout_same(layout, "this client's model", &c->welcome.layout, "the server's", err);
    return code;
}

/* ---- Requests ---- */

/* The link cannot be used any more. */
static tn_code fail_link(tn_client *c, tn_code code) {
    if (code != TN_OK)
        lost(c);
    return code;
}

/* Whether a call that failed with this code should connect and go on. */
static bool may_go_on(const tn_client *c, tn_code code) { return c->link.conn == NULL && is_transient(code); }

static tn_code ask(tn_client *c, uint8_t type, const tn_wr *w, tn_err *err) {
    return fail_link(c, send_small(c, type, ++c->request, w, err));
}

static tn_code hear(tn_client *c, int64_t deadline, tn_frame *f, tn_err *err) {
    tn_code code = tni_chan_header(&c->link, deadline, f, err);

    if (code == TN_OK) {
        c->heard = tn_now();
        c->proven = true;
    }
    return code;
}

/* The header of the reply to the last request; a refusal is returned as its code. */
static tn_code reply(tn_client *c, tn_frame *f, tn_err *err) {
    bool fatal;
    tn_code code = fail_link(c, hear(c, tn_deadline_after(tn_now(), REPLY_NS), f, err));

    if (code != TN_OK || f->type != TN_MSG_ERROR)
        return code;
    code = refusal(c, f, &fatal, err);
    return fatal ? fail_link(c, code) : code;
}

/* Reads the body of a small reply into c->body. */
static tn_code body_of(tn_client *c, const tn_frame *f, tn_err *err) { return fail_link(c, small_body(c, f, err)); }

/* A request cannot be sent while a NEXT is open; closing the connection takes that back. */
static void withdraw_next(tn_client *c) {
    if (c->link.conn != NULL && c->open_next != 0)
        lost(c);
}

static tn_code must_have_joined(const tn_client *c, tn_err *err) {
    return c->joined ? TN_OK : tn_fail(err, TN_EINVAL, "the client has not joined yet: call tn_client_join first");
}

/* ---- NEXT ---- */

static tn_code take_notice(tn_client *c, const tn_frame *f, tn_err *err) {
    tn_msg_notice m;
    tn_code code = body_of(c, f, err);

    if (code == TN_OK)
        code = fail_link(c, tn_msg_notice_decode(&m, c->body, f->size, err));
    if (code == TN_OK)
        tell(c, m.text);
    return code;
}

static tn_code next_here(tn_client *c, tn_msg_task *task, int64_t deadline, tn_err *err) {
    bool fatal;
    tn_frame f;
    tn_code code;

    if (c->open_next == 0) {
        if ((code = ask(c, TN_MSG_NEXT, NULL, err)) != TN_OK)
            return code;
        c->open_next = c->request;
        c->heard = tn_now();
    }
    for (;;) {
        int64_t silent_at = tn_deadline_after(c->heard, SILENCE_NS);

        code = hear(c, deadline < silent_at ? deadline : silent_at, &f, err);
        if (code == TN_ETIMEDOUT && tn_now() < silent_at)
            return code;
        if (code != TN_OK)
            return fail_link(c, code);
        if (f.type == TN_MSG_NOTICE) {
            if ((code = take_notice(c, &f, err)) != TN_OK)
                return code;
            continue;
        }
        c->open_next = 0;
        if (f.type == TN_MSG_ERROR) {
            code = refusal(c, &f, &fatal, err);
            return fatal ? fail_link(c, code) : code;
        }
        if (f.type != TN_MSG_TASK || f.id != c->request)
            return fail_link(c, unexpected(&f, "TASK", err));
        if ((code = body_of(c, &f, err)) == TN_OK)
            code = fail_link(c, tn_msg_task_decode(task, c->body, f.size, err));
        return code;
    }
}

tn_code tn_client_next(tn_client *c, tn_msg_task *task, int64_t timeout_ns, tn_err *err) {
    int64_t deadline = tn_deadline_after(tn_now(), timeout_ns);
    tn_code code = must_have_joined(c, err);

    while (code == TN_OK) {
        if ((code = be_connected(c, deadline, err)) != TN_OK)
            return code;
        code = next_here(c, task, deadline, err);
        if (!may_go_on(c, code))
            return code;
        code = TN_OK;
    }
    return code;
}

/* ---- GET ---- */

/* Fetches from *offset to the end, over this connection. */
static tn_code fetch(tn_client *c, uint64_t round, uint8_t *block, uint64_t *offset, tn_err *err) {
    const uint64_t size = c->welcome.layout.nbytes;
    tn_code code = TN_OK;
    tn_frame f;

    while (*offset < size && code == TN_OK) {
        uint64_t left = size - *offset;
        tn_msg_get get = {.round = round, .offset = *offset, .size = left < TN_MSG_CHUNK ? left : TN_MSG_CHUNK};
        tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);

        tn_msg_get_encode(&get, &w);
        code = ask(c, TN_MSG_GET, &w, err);
        tn_wr_release(&w);
        if (code == TN_OK)
            code = reply(c, &f, err);
        if (code != TN_OK)
            return code;
        if (f.type != TN_MSG_DATA || f.id != *offset || f.size == 0 || f.size > get.size)
            return fail_link(c, unexpected(&f, "the piece of the model that was asked for", err));
        code = fail_link(c, tni_chan_body(&c->link, block + *offset, f.size, err));
        if (code == TN_OK)
            *offset += f.size;
    }
    return code;
}

tn_code tn_client_model(tn_client *c, const tn_msg_task *task, void *block, tn_err *err) {
    uint8_t hash[TN_HASH_BYTES];
    uint64_t offset = 0;
    int tries = 0;
    tn_code code = must_have_joined(c, err);

    while (code == TN_OK) {
        withdraw_next(c);
        if ((code = be_connected(c, TN_FOREVER, err)) != TN_OK)
            return code;
        code = fetch(c, task->round, block, &offset, err);
        if (may_go_on(c, code)) {
            code = TN_OK;
            continue;
        }
        if (code != TN_OK)
            return code;
        tn_hash_once(block, c->welcome.layout.nbytes, hash);
        if (memcmp(hash, task->model_hash, sizeof(hash)) == 0)
            return TN_OK;
        offset = 0;
        if (++tries == TRIES)
            code = tn_fail(err, TN_EPROTO, "the model of round %" PRIu64 " came with another hash, %d times",
                           task->round, TRIES);
    }
    return code;
}

/* ---- BEGIN, PUT, END ---- */

static tn_code put_all(tn_client *c, const uint8_t *delta, uint64_t offset, tn_err *err) {
    const uint64_t size = c->welcome.layout.nbytes;
    tn_code code = TN_OK;

    while (offset < size && code == TN_OK) {
        uint64_t left = size - offset, n = left < c->welcome.chunk ? left : c->welcome.chunk;
        tn_frame f = {.type = TN_MSG_PUT, .id = offset};
        tn_iov iov = {(void *)(uintptr_t)(delta + offset), n};

        code = fail_link(c, tni_chan_send(&c->link, &f, &iov, 1, TNI_PROGRESS_NS, err));
        offset += n;
    }
    return code;
}

/* *done: the server has it. */
static tn_code take_answer(tn_client *c, const tn_frame *f, uint64_t *offset, bool *done, tn_err *err) {
    tn_msg_resume resume;
    tn_msg_accepted accepted;
    tn_code code;

    *done = f->type == TN_MSG_ACCEPTED;
    if (!*done && (f->type != TN_MSG_RESUME || offset == NULL))
        return fail_link(c, unexpected(f, offset != NULL ? "RESUME" : "ACCEPTED", err));
    if ((code = body_of(c, f, err)) != TN_OK)
        return code;
    if (*done)
        return fail_link(c, tn_msg_accepted_decode(&accepted, c->body, f->size, err));
    if ((code = tn_msg_resume_decode(&resume, c->body, f->size, err)) != TN_OK)
        return fail_link(c, code);
    if (resume.offset > c->welcome.layout.nbytes)
        return fail_link(c, tn_fail(err, TN_EPROTO,
                                    "the server asks for the update from byte %" PRIu64 " on; it has %zu",
                                    resume.offset, c->welcome.layout.nbytes));
    *offset = resume.offset;
    return TN_OK;
}

/* Over this connection. *ended: END was sent, so a TN_EPROTO that comes back means damage on the way. */
static tn_code submit_here(tn_client *c, const tn_msg_begin *begin, const void *delta, bool *ended, tn_err *err) {
    tn_wr w = tn_wr_init(TN_MSG_MAX_SMALL);
    uint64_t offset = 0;
    bool done = false;
    tn_frame f;
    tn_code code;

    *ended = false;
    tn_msg_begin_encode(begin, &w);
    code = ask(c, TN_MSG_BEGIN, &w, err);
    tn_wr_release(&w);
    if (code == TN_OK)
        code = reply(c, &f, err);
    if (code == TN_OK)
        code = take_answer(c, &f, &offset, &done, err);
    if (code != TN_OK || done)
        return code;
    code = put_all(c, delta, offset, err);
    if (code == TN_OK)
        code = ask(c, TN_MSG_END, NULL, err);
    *ended = code == TN_OK;
    if (code == TN_OK)
        code = reply(c, &f, err);
    if (code == TN_OK)
        code = take_answer(c, &f, NULL, &done, err);
    return code;
}

tn_code tn_client_submit(tn_client *c, const tn_msg_task *task, const void *delta, const tn_report *report,
                         tn_err *err) {
    tn_msg_begin begin = {.round = task->round, .attempt = task->attempt, .examples = report->examples};
    int tries = 0;
    bool ended;
    tn_code code = must_have_joined(c, err);

    if (code == TN_OK && report->nmetrics > TN_METRICS_MAX)
        code = tn_fail(err, TN_EINVAL, "%zu metrics; at most %d are allowed", report->nmetrics, TN_METRICS_MAX);
    if (code != TN_OK)
        return code;
    begin.nmetrics = report->nmetrics;
    if (begin.nmetrics != 0)
        memcpy(begin.metric, report->metric, report->nmetrics * sizeof(begin.metric[0]));
    begin.bytes = c->welcome.layout.nbytes;
    tn_hash_once(delta, begin.bytes, begin.hash);
    for (;;) {
        withdraw_next(c);
        if ((code = be_connected(c, TN_FOREVER, err)) != TN_OK)
            return code;
        code = submit_here(c, &begin, delta, &ended, err);
        if (ended && code == TN_EPROTO && c->link.conn != NULL && ++tries < TRIES)
            continue;
        if (!may_go_on(c, code))
            return code;
    }
}

/* ---- The end ---- */

void tn_client_free(tn_client *c) {
    tn_frame bye = {.type = TN_MSG_BYE};

    if (c == NULL)
        return;
    if (c->link_ready) {
        if (c->link.conn != NULL)
            tni_chan_send(&c->link, &bye, NULL, 0, TN_SECOND, NULL);
        tni_chan_release(&c->link);
    }
    tn_msg_welcome_release(&c->welcome);
    tn_key_release(&c->key);
    free(c->body);
    free(c->url);
    free(c->cert);
    free(c->key_file);
    free(c->ca);
    free(c->server_name);
    free(c);
}

/* The CBOR bodies of the protocol: docs/PROTOCOL.md says the same in words.
 *
 * Every decoder takes its map's keys from one list, refuses others, and bounds every value before it is
 * used. The two maps of the hello look at "version" first, so that a peer of another version is told so and
 * not that a key is unknown. */
#include <inttypes.h>
#include <string.h>

#include "fed/internal.h"

#define MAX_PARAMS (sizeof(((tn_msg_task *)NULL)->param) / sizeof(tn_metric))
#define NAME_CAP sizeof(((tn_metric *)NULL)->name)
#define TEXT_CAP 400 /* the longest sentence of any message, with its NUL */

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

uint64_t tn_msg_max(uint8_t type) {
    switch (type) {
    case TN_MSG_WELCOME:
        return TN_MSG_MAX_META;
    case TN_MSG_DATA:
    case TN_MSG_PUT:
        return TN_MSG_CHUNK;
    default:
        return type >= TN_MSG_CHALLENGE && type <= TN_MSG_BYE ? TN_MSG_MAX_SMALL : 0;
    }
}

const char *tn_msg_name(uint8_t type) {
    static const char *const name[] = {
        [TN_MSG_CHALLENGE] = "CHALLENGE", [TN_MSG_HELLO] = "HELLO",       [TN_MSG_WELCOME] = "WELCOME",
        [TN_MSG_ERROR] = "ERROR",         [TN_MSG_NEXT] = "NEXT",         [TN_MSG_TASK] = "TASK",
        [TN_MSG_NOTICE] = "NOTICE",       [TN_MSG_GET] = "GET",           [TN_MSG_DATA] = "DATA",
        [TN_MSG_BEGIN] = "BEGIN",         [TN_MSG_RESUME] = "RESUME",     [TN_MSG_PUT] = "PUT",
        [TN_MSG_END] = "END",             [TN_MSG_ACCEPTED] = "ACCEPTED", [TN_MSG_BYE] = "BYE",
    };

    return type < sizeof(name) / sizeof(name[0]) && name[type] != NULL ? name[type] : "unknown";
}

/* ---- Sentences ----
 *
 * They are shown to persons, so no control characters travel: the writer replaces them, the reader refuses
 * them. A sentence may also have been cut by snprintf in the middle of a character, or quote a file name
 * that is no UTF-8 at all. */

static bool is_control(uint8_t c) { return c < 0x20 || c == 0x7f; }

/* Bytes of the well-formed UTF-8 character at p (RFC 3629), 0 when there is none. p ends with a NUL. */
static size_t utf8_size(const uint8_t *p) {
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;

    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0)) /* too long a form; a surrogate */
        return 0;
    if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90)) /* too long a form; over U+10FFFF */
        return 0;
    return n;
}

static void put_sentence(tn_wr *w, const char *text) {
    char clean[TEXT_CAP];
    const uint8_t *p = (const uint8_t *)text;
    size_t n = 0;

    while (*p != '\0') {
        size_t size = utf8_size(p), room = size == 0 ? 1 : size;

        if (room > sizeof(clean) - 1 - n)
            break;
        memcpy(clean + n, p, room);
        if (size == 0 || is_control(*p))
            clean[n] = size == 0 ? '?' : ' ';
        n += room;
        p += room;
    }
    tn_cbor_put_textn(w, clean, n);
}

static tn_code get_sentence(const tn_cbor *map, const char *key, char *out, size_t cap, tn_err *err) {
    tn_code code = tn_cbor_get_text(map, key, out, cap, err);

    for (const char *p = out; code == TN_OK && *p != '\0'; p++) {
        if (is_control((uint8_t)*p))
            return tn_fail(err, TN_EPROTO, "key \"%s\" is a text with a control character in it", key);
    }
    return code;
}

/* ---- Metrics and hyper-parameters: a map of names to floats ---- */

static void put_metrics(tn_wr *w, const tn_metric *m, size_t n) {
    tn_cbor_put_map(w, n);
    for (size_t i = 0; i < n; i++) {
        put_sentence(w, m[i].name);
        tn_cbor_put_f64(w, m[i].value);
    }
}

static tn_code get_metric(const tn_cbor *key, const tn_cbor *value, const char *in, tn_metric *m, tn_err *err) {
    if (key->n == 0 || key->n >= NAME_CAP)
        return tn_fail(err, TN_EPROTO, "a name in \"%s\" has %zu bytes; 1 to %zu are allowed", in, key->n,
                       NAME_CAP - 1);
    for (size_t i = 0; i < key->n; i++) {
        if (is_control(key->p[i]))
            return tn_fail(err, TN_EPROTO, "a name in \"%s\" has a control character in it", in);
    }
    memcpy(m->name, key->p, key->n);
    m->name[key->n] = '\0';
    if (value->kind == TN_CBOR_UINT)
        m->value = (double)value->u;
    else if (value->kind == TN_CBOR_NEGINT)
        m->value = -1.0 - (double)value->u;
    else if (value->kind == TN_CBOR_F64)
        m->value = value->f;
    else
        return tn_fail(err, TN_EPROTO, "\"%s\" in \"%s\" is not a number", m->name, in);
    return TN_OK;
}

/* Duplicate names do not pass tn_cbor_parse. NaN and Inf do: whoever uses a metric drops and counts them. */
static tn_code get_metrics(const tn_cbor *map, const char *key, tn_metric *m, size_t max, size_t *n,
                           tn_err *err) {
    tn_cbor rest = tn_cbor_get(map, key), k, v;
    tn_code code = TN_OK;

    if (rest.kind != TN_CBOR_MAP)
        return tn_fail(err, TN_EPROTO, "key \"%s\" is missing or not a map", key);
    if (rest.u > max)
        return tn_fail(err, TN_EPROTO, "key \"%s\" has %" PRIu64 " names; at most %zu are allowed", key, rest.u,
                       max);
    *n = 0;
    while (code == TN_OK && tn_cbor_next(&rest, &k, &v))
        code = get_metric(&k, &v, key, &m[(*n)++], err);
    return code;
}

/* ---- Parts that several messages share ---- */

static tn_code parse(uint8_t type, const void *p, size_t n, const char *const *keys, tn_cbor *map,
                     tn_err *err) {
    tn_code code;

    if (n > tn_msg_max(type))
        return tn_fail(err, TN_ETOOBIG, "a body of %zu bytes; at most %" PRIu64 " are allowed", n,
                       tn_msg_max(type));
    code = tn_cbor_parse(p, n, map, err);
    return code == TN_OK && keys != NULL ? tn_cbor_only(map, keys, err) : code;
}

static tn_code get_version(const tn_cbor *map, uint64_t *out, const char *peer, tn_err *err) {
    tn_code code = tn_cbor_get_u64(map, "version", UINT64_MAX, out, err);

    if (code == TN_OK && *out != TN_PROTOCOL)
        return tn_fail(err, TN_EVERSION,
                       "the %s speaks protocol version %" PRIu64 ", this side version %d: bring both to the same "
                       "release",
                       peer, *out, TN_PROTOCOL);
    return code;
}

static tn_code get_u32(const tn_cbor *map, const char *key, uint32_t *out, tn_err *err) {
    uint64_t v = 0;
    tn_code code = tn_cbor_get_u64(map, key, UINT32_MAX, &v, err);

    *out = (uint32_t)v;
    return code;
}

/* An id; "" is allowed where `may_be_empty`. */
static tn_code get_id(const tn_cbor *map, char out[TN_ID_MAX + 1], bool may_be_empty, tn_err *err) {
    tn_code code = tn_cbor_get_text(map, "id", out, TN_ID_MAX + 1, err);

    if (code == TN_OK && !tn_id_valid(out) && !(may_be_empty && out[0] == '\0'))
        return tn_fail(err, TN_EPROTO, "key \"id\" is not a client id: %s", TNI_ID_RULE);
    return code;
}

/* Seconds: not NaN, not negative; Inf says "no limit". */
static tn_code get_seconds(const tn_cbor *map, const char *key, double *out, tn_err *err) {
    tn_code code = tn_cbor_get_f64(map, key, out, err);

    if (code == TN_OK && !(*out >= 0))
        return tn_fail(err, TN_EPROTO, "key \"%s\" is %g; a number of seconds is not negative", key, *out);
    return code;
}

/* Says which message was wrong. err may be NULL, as everywhere. */
static tn_code done(tn_code code, uint8_t type, tn_err *err) {
    if (code != TN_OK && err != NULL)
        tn_ctx(err, "%s", tn_msg_name(type));
    return code;
}

/* Runs `call` unless an earlier one failed. */
#define STEP(call)        \
    do {                  \
        if (code == TN_OK) \
            code = (call); \
    } while (0)

/* ---- CHALLENGE ---- */

void tn_msg_challenge_encode(const tn_msg_challenge *m, tn_wr *w) {
    tn_cbor_put_map(w, 6);
    tn_cbor_put_text(w, "version");
    tn_cbor_put_u64(w, m->version);
    tn_cbor_put_text(w, "nonce");
    tn_cbor_put_bytes(w, m->nonce, sizeof(m->nonce));
    tn_cbor_put_text(w, "key");
    tn_cbor_put_bytes(w, m->key, sizeof(m->key));
    tn_cbor_put_text(w, "cert");
    tn_cbor_put_bytes(w, m->cert, sizeof(m->cert));
    tn_cbor_put_text(w, "tls");
    tn_cbor_put_bool(w, m->tls);
    tn_cbor_put_text(w, "job");
    put_sentence(w, m->job);
}

tn_code tn_msg_challenge_decode(tn_msg_challenge *m, const void *p, size_t n, tn_err *err) {
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_CHALLENGE, p, n, NULL, &map, err);
    STEP(get_version(&map, &m->version, "server", err));
    STEP(tn_cbor_only(&map, KEYS("version", "nonce", "key", "cert", "tls", "job"), err));
    STEP(tn_cbor_get_bytes(&map, "nonce", m->nonce, sizeof(m->nonce), err));
    STEP(tn_cbor_get_bytes(&map, "key", m->key, sizeof(m->key), err));
    STEP(tn_cbor_get_bytes(&map, "cert", m->cert, sizeof(m->cert), err));
    STEP(tn_cbor_get_bool(&map, "tls", &m->tls, err));
    STEP(get_sentence(&map, "job", m->job, sizeof(m->job), err));
    return done(code, TN_MSG_CHALLENGE, err);
}

/* ---- HELLO ---- */

void tn_msg_hello_encode(const tn_msg_hello *m, tn_wr *w) {
    tn_cbor_put_map(w, 6);
    tn_cbor_put_text(w, "version");
    tn_cbor_put_u64(w, m->version);
    tn_cbor_put_text(w, "nonce");
    tn_cbor_put_bytes(w, m->nonce, sizeof(m->nonce));
    tn_cbor_put_text(w, "key");
    tn_cbor_put_bytes(w, m->key, sizeof(m->key));
    tn_cbor_put_text(w, "cert");
    tn_cbor_put_bytes(w, m->cert, sizeof(m->cert));
    tn_cbor_put_text(w, "id");
    tn_cbor_put_text(w, m->id);
    tn_cbor_put_text(w, "sig");
    tn_cbor_put_bytes(w, m->sig, sizeof(m->sig));
}

tn_code tn_msg_hello_decode(tn_msg_hello *m, const void *p, size_t n, tn_err *err) {
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_HELLO, p, n, NULL, &map, err);
    STEP(get_version(&map, &m->version, "client", err));
    STEP(tn_cbor_only(&map, KEYS("version", "nonce", "key", "cert", "id", "sig"), err));
    STEP(tn_cbor_get_bytes(&map, "nonce", m->nonce, sizeof(m->nonce), err));
    STEP(tn_cbor_get_bytes(&map, "key", m->key, sizeof(m->key), err));
    STEP(tn_cbor_get_bytes(&map, "cert", m->cert, sizeof(m->cert), err));
    STEP(get_id(&map, m->id, true, err));
    STEP(tn_cbor_get_bytes(&map, "sig", m->sig, sizeof(m->sig), err));
    return done(code, TN_MSG_HELLO, err);
}

/* Text in a hash: its length in front, so that no two sets of fields give the same bytes. */
static void hash_text(tn_hash *h, const char *s) {
    uint8_t n = (uint8_t)strlen(s); /* job and id are at most 64 bytes */

    tn_hash_update(h, &n, 1);
    tn_hash_update(h, s, n);
}

static void hash_u64(tn_hash *h, uint64_t v) {
    uint8_t le[8];
    tn_wr w = tn_wr_fixed(le, sizeof(le));

    tn_wr_u64(&w, v);
    tn_hash_update(h, le, sizeof(le));
}

void tn_msg_transcript(const tn_msg_challenge *c, const tn_msg_hello *h, uint8_t out[TN_HASH_BYTES]) {
    static const char label[] = "tn hello transcript 1";
    uint8_t tls = c->tls ? 1 : 0;
    tn_hash state;

    tn_hash_init(&state);
    tn_hash_update(&state, label, sizeof(label)); /* with its NUL */
    hash_u64(&state, c->version);
    hash_u64(&state, h->version);
    tn_hash_update(&state, c->nonce, sizeof(c->nonce));
    tn_hash_update(&state, h->nonce, sizeof(h->nonce));
    tn_hash_update(&state, c->key, sizeof(c->key));
    tn_hash_update(&state, h->key, sizeof(h->key));
    tn_hash_update(&state, c->cert, sizeof(c->cert));
    tn_hash_update(&state, h->cert, sizeof(h->cert));
    tn_hash_update(&state, &tls, 1);
    hash_text(&state, c->job);
    hash_text(&state, h->id);
    tn_hash_final(&state, out);
}

/* ---- WELCOME ---- */

void tn_msg_welcome_encode(const tn_msg_welcome *m, tn_wr *w) {
    tn_cbor_put_map(w, 8);
    tn_cbor_put_text(w, "id");
    tn_cbor_put_text(w, m->id);
    tn_cbor_put_text(w, "authenticated");
    tn_cbor_put_bool(w, m->authenticated);
    tn_cbor_put_text(w, "sig");
    tn_cbor_put_bytes(w, m->sig, sizeof(m->sig));
    tn_cbor_put_text(w, "rounds");
    tn_cbor_put_u64(w, m->rounds);
    tn_cbor_put_text(w, "aggregator");
    put_sentence(w, m->aggregator);
    tn_cbor_put_text(w, "chunk");
    tn_cbor_put_u64(w, m->chunk);
    tn_cbor_put_text(w, "resume_seconds");
    tn_cbor_put_f64(w, m->resume_seconds);
    tn_cbor_put_text(w, "layout");
    tn_layout_encode(&m->layout, w);
}

static tn_code get_layout(const tn_cbor *map, tn_layout *out, tn_err *err) {
    tn_cbor v = tn_cbor_get(map, "layout");

    if (v.kind == TN_CBOR_NONE)
        return tn_fail(err, TN_EPROTO, "key \"layout\" is missing");
    return tn_layout_decode(out, &v, err);
}

tn_code tn_msg_welcome_decode(tn_msg_welcome *m, const void *p, size_t n, tn_err *err) {
    static const char *const keys[] = {"id", "authenticated", "sig", "rounds", "aggregator", "chunk",
                                       "resume_seconds", "layout", NULL};
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    tn_layout_init(&m->layout);
    code = parse(TN_MSG_WELCOME, p, n, keys, &map, err);
    STEP(get_id(&map, m->id, false, err));
    STEP(tn_cbor_get_bool(&map, "authenticated", &m->authenticated, err));
    STEP(tn_cbor_get_bytes(&map, "sig", m->sig, sizeof(m->sig), err));
    STEP(tn_cbor_get_u64(&map, "rounds", TNI_ROUNDS_MAX, &m->rounds, err));
    STEP(get_sentence(&map, "aggregator", m->aggregator, sizeof(m->aggregator), err));
    STEP(tn_cbor_get_u64(&map, "chunk", TN_MSG_CHUNK, &m->chunk, err));
    if (code == TN_OK && m->chunk == 0)
        code = tn_fail(err, TN_EPROTO, "key \"chunk\" is 0");
    STEP(get_seconds(&map, "resume_seconds", &m->resume_seconds, err));
    STEP(get_layout(&map, &m->layout, err));
    if (code != TN_OK)
        tn_msg_welcome_release(m);
    return done(code, TN_MSG_WELCOME, err);
}

void tn_msg_welcome_release(tn_msg_welcome *m) { tn_layout_release(&m->layout); }

/* ---- ERROR ---- */

void tn_msg_error_encode(const tn_msg_error *m, tn_wr *w) {
    tn_cbor_put_map(w, 2);
    tn_cbor_put_text(w, "code");
    tn_cbor_put_u64(w, (uint64_t)m->code);
    tn_cbor_put_text(w, "text");
    put_sentence(w, m->text);
}

static bool known_code(uint64_t code) {
    switch (code) {
#define X(name, value, text) case value:
        TN_CODES(X)
#undef X
        return true;
    default:
        return false;
    }
}

/* Codes are appended over time: one that a later server knows and this side does not says at least that the
 * peer refused. */
tn_code tn_msg_error_decode(tn_msg_error *m, const void *p, size_t n, tn_err *err) {
    uint64_t value = 0;
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_ERROR, p, n, KEYS("code", "text"), &map, err);
    STEP(tn_cbor_get_u64(&map, "code", UINT16_MAX, &value, err));
    if (code == TN_OK && value == TN_OK)
        code = tn_fail(err, TN_EPROTO, "key \"code\" is 0, which is no error");
    STEP(get_sentence(&map, "text", m->text, sizeof(m->text), err));
    m->code = known_code(value) ? (tn_code)value : TN_EPEER;
    return done(code, TN_MSG_ERROR, err);
}

/* ---- TASK ---- */

void tn_msg_task_encode(const tn_msg_task *m, tn_wr *w) {
    tn_cbor_put_map(w, 8);
    tn_cbor_put_text(w, "kind");
    tn_cbor_put_u64(w, (uint64_t)m->kind);
    tn_cbor_put_text(w, "round");
    tn_cbor_put_u64(w, m->round);
    tn_cbor_put_text(w, "attempt");
    tn_cbor_put_u64(w, m->attempt);
    tn_cbor_put_text(w, "model_hash");
    tn_cbor_put_bytes(w, m->model_hash, sizeof(m->model_hash));
    tn_cbor_put_text(w, "deadline_seconds");
    tn_cbor_put_f64(w, m->deadline_seconds);
    tn_cbor_put_text(w, "cohort");
    tn_cbor_put_u64(w, m->cohort);
    tn_cbor_put_text(w, "text");
    put_sentence(w, m->text);
    tn_cbor_put_text(w, "params");
    put_metrics(w, m->param, m->nparams);
}

tn_code tn_msg_task_decode(tn_msg_task *m, const void *p, size_t n, tn_err *err) {
    static const char *const keys[] = {"kind", "round", "attempt", "model_hash", "deadline_seconds", "cohort",
                                       "text", "params", NULL};
    uint64_t kind = 0;
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_TASK, p, n, keys, &map, err);
    STEP(tn_cbor_get_u64(&map, "kind", TN_TASK_FAILED, &kind, err));
    STEP(tn_cbor_get_u64(&map, "round", TNI_ROUNDS_MAX, &m->round, err));
    STEP(get_u32(&map, "attempt", &m->attempt, err));
    STEP(tn_cbor_get_bytes(&map, "model_hash", m->model_hash, sizeof(m->model_hash), err));
    STEP(get_seconds(&map, "deadline_seconds", &m->deadline_seconds, err));
    STEP(get_u32(&map, "cohort", &m->cohort, err));
    STEP(get_sentence(&map, "text", m->text, sizeof(m->text), err));
    STEP(get_metrics(&map, "params", m->param, MAX_PARAMS, &m->nparams, err));
    m->kind = (tn_task_kind)kind;
    if (code == TN_OK && m->kind == TN_TASK_TRAIN && (m->round == 0 || m->attempt == 0))
        code = tn_fail(err, TN_EPROTO,
                       "a task to train in round %" PRIu64 ", attempt %" PRIu32 ": both count from 1", m->round,
                       m->attempt);
    return done(code, TN_MSG_TASK, err);
}

/* ---- GET ---- */

void tn_msg_get_encode(const tn_msg_get *m, tn_wr *w) {
    tn_cbor_put_map(w, 3);
    tn_cbor_put_text(w, "round");
    tn_cbor_put_u64(w, m->round);
    tn_cbor_put_text(w, "offset");
    tn_cbor_put_u64(w, m->offset);
    tn_cbor_put_text(w, "size");
    tn_cbor_put_u64(w, m->size);
}

tn_code tn_msg_get_decode(tn_msg_get *m, const void *p, size_t n, tn_err *err) {
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_GET, p, n, KEYS("round", "offset", "size"), &map, err);
    STEP(tn_cbor_get_u64(&map, "round", TNI_ROUNDS_MAX, &m->round, err));
    STEP(tn_cbor_get_u64(&map, "offset", TN_LAYOUT_MAX_BYTES, &m->offset, err));
    STEP(tn_cbor_get_u64(&map, "size", TN_MSG_CHUNK, &m->size, err));
    return done(code, TN_MSG_GET, err);
}

/* ---- BEGIN ---- */

void tn_msg_begin_encode(const tn_msg_begin *m, tn_wr *w) {
    tn_cbor_put_map(w, 6);
    tn_cbor_put_text(w, "round");
    tn_cbor_put_u64(w, m->round);
    tn_cbor_put_text(w, "attempt");
    tn_cbor_put_u64(w, m->attempt);
    tn_cbor_put_text(w, "examples");
    tn_cbor_put_u64(w, m->examples);
    tn_cbor_put_text(w, "bytes");
    tn_cbor_put_u64(w, m->bytes);
    tn_cbor_put_text(w, "hash");
    tn_cbor_put_bytes(w, m->hash, sizeof(m->hash));
    tn_cbor_put_text(w, "metrics");
    put_metrics(w, m->metric, m->nmetrics);
}

/* A count of 0 or a huge one passes: it is refused as an update (tn_update_check), by name, and the session
 * goes on. */
tn_code tn_msg_begin_decode(tn_msg_begin *m, const void *p, size_t n, tn_err *err) {
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_BEGIN, p, n, KEYS("round", "attempt", "examples", "bytes", "hash", "metrics"), &map,
                 err);
    STEP(tn_cbor_get_u64(&map, "round", TNI_ROUNDS_MAX, &m->round, err));
    STEP(get_u32(&map, "attempt", &m->attempt, err));
    STEP(tn_cbor_get_u64(&map, "examples", UINT64_MAX, &m->examples, err));
    STEP(tn_cbor_get_u64(&map, "bytes", TN_LAYOUT_MAX_BYTES, &m->bytes, err));
    STEP(tn_cbor_get_bytes(&map, "hash", m->hash, sizeof(m->hash), err));
    STEP(get_metrics(&map, "metrics", m->metric, TN_METRICS_MAX, &m->nmetrics, err));
    return done(code, TN_MSG_BEGIN, err);
}

/* ---- RESUME, ACCEPTED, NOTICE ---- */

void tn_msg_resume_encode(const tn_msg_resume *m, tn_wr *w) {
    tn_cbor_put_map(w, 1);
    tn_cbor_put_text(w, "offset");
    tn_cbor_put_u64(w, m->offset);
}

tn_code tn_msg_resume_decode(tn_msg_resume *m, const void *p, size_t n, tn_err *err) {
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_RESUME, p, n, KEYS("offset"), &map, err);
    STEP(tn_cbor_get_u64(&map, "offset", TN_LAYOUT_MAX_BYTES, &m->offset, err));
    return done(code, TN_MSG_RESUME, err);
}

void tn_msg_accepted_encode(const tn_msg_accepted *m, tn_wr *w) {
    tn_cbor_put_map(w, 2);
    tn_cbor_put_text(w, "round");
    tn_cbor_put_u64(w, m->round);
    tn_cbor_put_text(w, "duplicate");
    tn_cbor_put_bool(w, m->duplicate);
}

tn_code tn_msg_accepted_decode(tn_msg_accepted *m, const void *p, size_t n, tn_err *err) {
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_ACCEPTED, p, n, KEYS("round", "duplicate"), &map, err);
    STEP(tn_cbor_get_u64(&map, "round", TNI_ROUNDS_MAX, &m->round, err));
    STEP(tn_cbor_get_bool(&map, "duplicate", &m->duplicate, err));
    return done(code, TN_MSG_ACCEPTED, err);
}

void tn_msg_notice_encode(const tn_msg_notice *m, tn_wr *w) {
    tn_cbor_put_map(w, 1);
    tn_cbor_put_text(w, "text");
    put_sentence(w, m->text);
}

tn_code tn_msg_notice_decode(tn_msg_notice *m, const void *p, size_t n, tn_err *err) {
    tn_cbor map;
    tn_code code;

    memset(m, 0, sizeof(*m));
    code = parse(TN_MSG_NOTICE, p, n, KEYS("text"), &map, err);
    STEP(get_sentence(&map, "text", m->text, sizeof(m->text), err));
    return done(code, TN_MSG_NOTICE, err);
}

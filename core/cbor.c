/* CBOR: libcbor decodes one item's head at a time and encodes heads; structure, limits and look-up are here.
 *
 * tn_cbor_parse walks everything once and recursively; after that, walking needs no error path. Still,
 * every step keeps its bounds, so that a value which did not come from tn_cbor_parse yields nothing rather
 * than a stray read. */
#include "core/cbor.h"

#include <cbor.h>
#include <inttypes.h>
#include <string.h>

#include "core/internal.h"

/* ---- Writing ---- */

#define HEAD_MAX 9 /* initial byte and a 64-bit argument */

static void put_head(tn_wr *w, size_t (*encode)(size_t, unsigned char *, size_t), size_t n) {
    unsigned char head[HEAD_MAX];

    tn_wr_bytes(w, head, encode(n, head, sizeof(head)));
}

void tn_cbor_put_map(tn_wr *w, size_t pairs) { put_head(w, cbor_encode_map_start, pairs); }
void tn_cbor_put_array(tn_wr *w, size_t items) { put_head(w, cbor_encode_array_start, items); }

void tn_cbor_put_u64(tn_wr *w, uint64_t v) {
    unsigned char head[HEAD_MAX];

    tn_wr_bytes(w, head, cbor_encode_uint(v, head, sizeof(head)));
}

void tn_cbor_put_i64(tn_wr *w, int64_t v) {
    unsigned char head[HEAD_MAX];

    if (v >= 0)
        tn_cbor_put_u64(w, (uint64_t)v);
    else /* the argument of a negative integer is -1 - v */
        tn_wr_bytes(w, head, cbor_encode_negint((uint64_t)(-1 - v), head, sizeof(head)));
}

void tn_cbor_put_f64(tn_wr *w, double v) {
    unsigned char head[HEAD_MAX];

    tn_wr_bytes(w, head, cbor_encode_double(v, head, sizeof(head)));
}

void tn_cbor_put_bool(tn_wr *w, bool v) {
    unsigned char head[HEAD_MAX];

    tn_wr_bytes(w, head, cbor_encode_bool(v, head, sizeof(head)));
}

void tn_cbor_put_textn(tn_wr *w, const char *s, size_t n) {
    put_head(w, cbor_encode_string_start, n);
    tn_wr_bytes(w, s, n);
}

void tn_cbor_put_text(tn_wr *w, const char *s) { tn_cbor_put_textn(w, s, strlen(s)); }

void tn_cbor_put_bytes(tn_wr *w, const void *p, size_t n) {
    put_head(w, cbor_encode_bytestring_start, n);
    tn_wr_bytes(w, p, n);
}

/* ---- One item's head, by libcbor's callbacks ---- */

typedef struct head {
    tn_cbor v;
    const char *refused; /* what it is, when it is outside the subset */
} head;

static void set_int(void *ctx, tn_cbor_kind kind, uint64_t u) {
    head *h = ctx;

    h->v.kind = kind;
    h->v.u = u;
}

static void set_view(void *ctx, tn_cbor_kind kind, cbor_data p, size_t n) {
    head *h = ctx;

    h->v.kind = kind;
    h->v.p = p;
    h->v.n = n;
}

static void refuse(void *ctx, const char *what) { ((head *)ctx)->refused = what; }

static void on_u8(void *ctx, uint8_t v) { set_int(ctx, TN_CBOR_UINT, v); }
static void on_u16(void *ctx, uint16_t v) { set_int(ctx, TN_CBOR_UINT, v); }
static void on_u32(void *ctx, uint32_t v) { set_int(ctx, TN_CBOR_UINT, v); }
static void on_u64(void *ctx, uint64_t v) { set_int(ctx, TN_CBOR_UINT, v); }
static void on_neg8(void *ctx, uint8_t v) { set_int(ctx, TN_CBOR_NEGINT, v); }
static void on_neg16(void *ctx, uint16_t v) { set_int(ctx, TN_CBOR_NEGINT, v); }
static void on_neg32(void *ctx, uint32_t v) { set_int(ctx, TN_CBOR_NEGINT, v); }
static void on_neg64(void *ctx, uint64_t v) { set_int(ctx, TN_CBOR_NEGINT, v); }
static void on_bool(void *ctx, bool v) { set_int(ctx, TN_CBOR_BOOL, v); }
static void on_array(void *ctx, size_t n) { set_int(ctx, TN_CBOR_ARRAY, n); }
static void on_map(void *ctx, size_t n) { set_int(ctx, TN_CBOR_MAP, n); }
static void on_bytes(void *ctx, cbor_data p, size_t n) { set_view(ctx, TN_CBOR_BYTES, p, n); }
static void on_text(void *ctx, cbor_data p, size_t n) { set_view(ctx, TN_CBOR_TEXT, p, n); }

static void on_f64(void *ctx, double v) {
    head *h = ctx;

    h->v.kind = TN_CBOR_F64;
    h->v.f = v;
}

static void on_f16(void *ctx, float v) {
    (void)v;
    refuse(ctx, "a half-precision float");
}
static void on_f32(void *ctx, float v) {
    (void)v;
    refuse(ctx, "a single-precision float");
}
static void on_tag(void *ctx, uint64_t v) {
    (void)v;
    refuse(ctx, "a tag");
}
static void on_indefinite(void *ctx) { refuse(ctx, "an item of indefinite length"); }
static void on_break(void *ctx) { refuse(ctx, "a break"); }
static void on_null(void *ctx) { refuse(ctx, "null"); }
static void on_undefined(void *ctx) { refuse(ctx, "undefined"); }

static const struct cbor_callbacks callbacks = {
    .uint8 = on_u8,
    .uint16 = on_u16,
    .uint32 = on_u32,
    .uint64 = on_u64,
    .negint8 = on_neg8,
    .negint16 = on_neg16,
    .negint32 = on_neg32,
    .negint64 = on_neg64,
    .byte_string_start = on_indefinite,
    .byte_string = on_bytes,
    .string = on_text,
    .string_start = on_indefinite,
    .indef_array_start = on_indefinite,
    .array_start = on_array,
    .indef_map_start = on_indefinite,
    .map_start = on_map,
    .tag = on_tag,
    .float2 = on_f16,
    .float4 = on_f32,
    .float8 = on_f64,
    .undefined = on_undefined,
    .null = on_null,
    .boolean = on_bool,
    .indef_break = on_break,
};

/* Takes one item's head (for strings, the content too) off r. Errors go to `h->refused` and r->fail. */
static bool take_head(tn_rd *r, head *h) {
    struct cbor_decoder_result res;

    memset(h, 0, sizeof(*h));
    if (r->left == 0) {
        h->refused = "the end of the input";
    } else {
        res = cbor_stream_decode(r->p, r->left, &callbacks, h);
        if (res.status == CBOR_DECODER_FINISHED && h->refused == NULL)
            return tn_rd_take(r, res.read) != NULL;
        if (h->refused == NULL)
            h->refused = res.status == CBOR_DECODER_NEDATA ? "an item cut short" : "a reserved or simple value";
    }
    r->fail = TN_EPROTO;
    return false;
}

/* ---- Checking a whole input ---- */

typedef struct checker {
    tn_rd r;
    const uint8_t *start;
    tn_err *err;
} checker;

static tn_code bad(checker *c, const uint8_t *at, const char *what) {
    c->r.fail = TN_EPROTO;
    return tn_fail(c->err, TN_EPROTO, "CBOR: %s at byte %zu", what, (size_t)(at - c->start));
}

static bool same_text(const void *a, size_t a_n, const void *b, size_t b_n) {
    return a_n == b_n && (a_n == 0 || memcmp(a, b, a_n) == 0);
}

typedef struct map_key {
    const uint8_t *p;
    size_t n;
} map_key;

/* A key of a map: text, unlike the `count` keys seen before it, which it joins. */
static tn_code check_key(checker *c, map_key *seen, size_t count) {
    const uint8_t *at = c->r.p;
    head h;

    if (!take_head(&c->r, &h))
        return bad(c, at, h.refused);
    if (h.v.kind != TN_CBOR_TEXT)
        return bad(c, at, "a map key that is not text");
    if (!tni_utf8_valid(h.v.p, h.v.n))
        return bad(c, at, "text that is not UTF-8");
    for (size_t i = 0; i < count; i++) {
        if (same_text(seen[i].p, seen[i].n, h.v.p, h.v.n))
            return bad(c, at, "a map key that was there before");
    }
    seen[count].p = h.v.p;
    seen[count].n = h.v.n;
    return TN_OK;
}

static tn_code check_item(checker *c, int depth, tn_cbor *out);

static tn_code check_map(checker *c, const uint8_t *at, uint64_t pairs, int depth) {
    map_key keys[TN_CBOR_MAX_PAIRS] = {{NULL, 0}};
    tn_cbor value;
    tn_code code;

    if (pairs > TN_CBOR_MAX_PAIRS)
        return bad(c, at, "a map of too many pairs");
    for (size_t i = 0; i < pairs; i++) {
        if ((code = check_key(c, keys, i)) != TN_OK || (code = check_item(c, depth, &value)) != TN_OK)
            return code;
    }
    return TN_OK;
}

/* `depth` containers are around this item. *out is it, with p and n set for containers too. */
static tn_code check_item(checker *c, int depth, tn_cbor *out) {
    const uint8_t *at = c->r.p;
    tn_code code = TN_OK;
    tn_cbor item;
    head h;

    if (!take_head(&c->r, &h))
        return bad(c, at, h.refused);
    *out = h.v;
    if (h.v.kind == TN_CBOR_TEXT && !tni_utf8_valid(h.v.p, h.v.n))
        return bad(c, at, "text that is not UTF-8");
    if (h.v.kind != TN_CBOR_ARRAY && h.v.kind != TN_CBOR_MAP)
        return TN_OK;
    if (depth == TN_CBOR_DEPTH)
        return bad(c, at, "nesting that is too deep");
    /* An item takes a byte at least: a count that cannot be there costs no walk. */
    if (h.v.u > c->r.left)
        return bad(c, at, "a count of more items than there are bytes");
    out->p = c->r.p;
    if (h.v.kind == TN_CBOR_MAP)
        code = check_map(c, at, h.v.u, depth + 1);
    for (uint64_t i = 0; h.v.kind == TN_CBOR_ARRAY && i < h.v.u && code == TN_OK; i++)
        code = check_item(c, depth + 1, &item);
    out->n = (size_t)(c->r.p - out->p);
    return code;
}

tn_code tn_cbor_parse(const void *p, size_t n, tn_cbor *root, tn_err *err) {
    checker c = {.r = tn_rd_init(p, n), .start = p, .err = err};
    tn_code code = check_item(&c, 0, root);

    if (code == TN_OK && c.r.left != 0)
        code = bad(&c, c.r.p, "bytes left over");
    if (code != TN_OK)
        memset(root, 0, sizeof(*root));
    return code;
}

/* ---- Walking what was checked ---- */

/* Takes one whole item off r, contents of containers included. */
static bool take_item(tn_rd *r, tn_cbor *out) {
    uint64_t pending = 0;
    head h;

    if (!take_head(r, &h))
        return false;
    *out = h.v;
    if (out->kind != TN_CBOR_ARRAY && out->kind != TN_CBOR_MAP)
        return true;
    out->p = r->p;
    do {
        if (h.v.kind == TN_CBOR_ARRAY || h.v.kind == TN_CBOR_MAP) {
            uint64_t items = h.v.kind == TN_CBOR_MAP ? h.v.u * 2 : h.v.u;

            if (h.v.u > r->left || items > r->left)
                return false;
            pending += items;
        }
        if (pending == 0)
            break;
        pending--;
    } while (take_head(r, &h));
    out->n = (size_t)(r->p - out->p);
    return r->fail == TN_OK;
}

bool tn_cbor_next(tn_cbor *container, tn_cbor *key, tn_cbor *value) {
    tn_rd r = tn_rd_init(container->p, container->n);
    tn_cbor k = {.kind = TN_CBOR_NONE};

    if ((container->kind != TN_CBOR_ARRAY && container->kind != TN_CBOR_MAP) || container->u == 0)
        return false;
    if (container->kind == TN_CBOR_MAP && !take_item(&r, &k))
        return false;
    if (!take_item(&r, value))
        return false;
    if (container->kind == TN_CBOR_MAP && key != NULL)
        *key = k;
    container->p = r.p;
    container->n = r.left;
    container->u--;
    return true;
}

tn_cbor tn_cbor_get(const tn_cbor *map, const char *key) {
    tn_cbor none = {.kind = TN_CBOR_NONE};
    tn_cbor rest = *map, k = none, v = none;
    size_t n = strlen(key);

    if (map->kind != TN_CBOR_MAP)
        return none;
    while (tn_cbor_next(&rest, &k, &v)) {
        if (same_text(k.p, k.n, key, n))
            return v;
    }
    return none;
}

static const char *kind_text(tn_cbor_kind kind) {
    static const char *const text[] = {
        [TN_CBOR_NONE] = "nothing",       [TN_CBOR_UINT] = "an unsigned integer",
        [TN_CBOR_F64] = "a float",        [TN_CBOR_NEGINT] = "a negative integer",
        [TN_CBOR_BOOL] = "a boolean",     [TN_CBOR_TEXT] = "a text",
        [TN_CBOR_BYTES] = "a byte string", [TN_CBOR_ARRAY] = "an array",
        [TN_CBOR_MAP] = "a map",
    };

    return text[kind];
}

/* The value of `key`, which must be of the wanted kind. */
static tn_code want(const tn_cbor *map, const char *key, tn_cbor_kind kind, tn_cbor *v, tn_err *err) {
    if (map->kind != TN_CBOR_MAP)
        return tn_fail(err, TN_EPROTO, "key \"%s\" was looked for in %s, not in a map", key,
                       kind_text(map->kind));
    *v = tn_cbor_get(map, key);
    if (v->kind == TN_CBOR_NONE)
        return tn_fail(err, TN_EPROTO, "key \"%s\" is missing (%s was expected)", key, kind_text(kind));
    if (v->kind != kind)
        return tn_fail(err, TN_EPROTO, "key \"%s\" is %s; %s was expected", key, kind_text(v->kind),
                       kind_text(kind));
    return TN_OK;
}

tn_code tn_cbor_get_u64(const tn_cbor *map, const char *key, uint64_t max, uint64_t *out, tn_err *err) {
    tn_cbor v;
    tn_code code = want(map, key, TN_CBOR_UINT, &v, err);

    if (code != TN_OK)
        return code;
    if (v.u > max)
        return tn_fail(err, TN_EPROTO, "key \"%s\" is %" PRIu64 "; at most %" PRIu64 " is allowed", key, v.u,
                       max);
    *out = v.u;
    return TN_OK;
}

tn_code tn_cbor_get_f64(const tn_cbor *map, const char *key, double *out, tn_err *err) {
    tn_cbor v = tn_cbor_get(map, key);
    tn_code code = TN_OK;

    if (v.kind == TN_CBOR_UINT)
        *out = (double)v.u;
    else if (v.kind == TN_CBOR_NEGINT)
        *out = -1.0 - (double)v.u;
    else if ((code = want(map, key, TN_CBOR_F64, &v, err)) == TN_OK)
        *out = v.f;
    return code;
}

tn_code tn_cbor_get_bool(const tn_cbor *map, const char *key, bool *out, tn_err *err) {
    tn_cbor v;
    tn_code code = want(map, key, TN_CBOR_BOOL, &v, err);

    if (code == TN_OK)
        *out = v.u != 0;
    return code;
}

tn_code tn_cbor_get_text(const tn_cbor *map, const char *key, char *out, size_t cap, tn_err *err) {
    tn_cbor v;
    tn_code code = want(map, key, TN_CBOR_TEXT, &v, err);

    if (code != TN_OK)
        return code;
    if (v.n >= cap)
        return tn_fail(err, TN_EPROTO, "key \"%s\" is a text of %zu bytes; at most %zu are allowed", key, v.n,
                       cap - 1);
    if (memchr(v.p, '\0', v.n) != NULL)
        return tn_fail(err, TN_EPROTO, "key \"%s\" is a text with a NUL byte in it", key);
    memcpy(out, v.p, v.n);
    out[v.n] = '\0';
    return TN_OK;
}

tn_code tn_cbor_get_bytes(const tn_cbor *map, const char *key, void *out, size_t n, tn_err *err) {
    tn_cbor v;
    tn_code code = want(map, key, TN_CBOR_BYTES, &v, err);

    if (code != TN_OK)
        return code;
    if (v.n != n)
        return tn_fail(err, TN_EPROTO, "key \"%s\" is a byte string of %zu bytes; %zu were expected", key, v.n,
                       n);
    if (n != 0)
        memcpy(out, v.p, n);
    return TN_OK;
}

tn_code tn_cbor_only(const tn_cbor *map, const char *const *keys, tn_err *err) {
    tn_cbor rest = *map, k = {.kind = TN_CBOR_NONE}, v;

    if (map->kind != TN_CBOR_MAP)
        return tn_fail(err, TN_EPROTO, "%s where a map was expected", kind_text(map->kind));
    while (tn_cbor_next(&rest, &k, &v)) {
        const char *const *known = keys;

        while (*known != NULL && !same_text(k.p, k.n, *known, strlen(*known)))
            known++;
        if (*known == NULL)
            return tn_fail(err, TN_EPROTO, "unknown key \"%.*s\"", (int)(k.n < 64 ? k.n : 64),
                           (const char *)k.p);
    }
    return TN_OK;
}

/* Bounds-checked little-endian reader and writer. */
#include "core/wire.h"

#include <stdlib.h>
#include <string.h>

tn_rd tn_rd_init(const void *p, size_t n) {
    /* Never NULL, so that a view of no bytes is not mistaken for a failure. */
    tn_rd r = {.p = p != NULL ? p : (const uint8_t *)"", .left = n, .fail = TN_OK};

    return r;
}

const uint8_t *tn_rd_take(tn_rd *r, size_t n) {
    const uint8_t *p = r->p;

    if (r->fail != TN_OK || n > r->left) {
        r->fail = TN_EPROTO;
        return NULL;
    }
    r->p += n;
    r->left -= n;
    return p;
}

static uint64_t rd_le(tn_rd *r, size_t n) {
    const uint8_t *p = tn_rd_take(r, n);
    uint64_t v = 0;

    if (p == NULL)
        return 0;
    for (size_t i = n; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

uint8_t tn_rd_u8(tn_rd *r) { return (uint8_t)rd_le(r, 1); }
uint16_t tn_rd_u16(tn_rd *r) { return (uint16_t)rd_le(r, 2); }
uint32_t tn_rd_u32(tn_rd *r) { return (uint32_t)rd_le(r, 4); }
uint64_t tn_rd_u64(tn_rd *r) { return rd_le(r, 8); }

uint32_t tn_rd_count(tn_rd *r, size_t min_each, uint32_t max) {
    uint32_t n = tn_rd_u32(r);

    if (r->fail == TN_OK && (n > max || (min_each != 0 && n > r->left / min_each)))
        r->fail = TN_EPROTO;
    return r->fail == TN_OK ? n : 0;
}

tn_code tn_rd_end(const tn_rd *r) {
    if (r->fail != TN_OK)
        return r->fail;
    return r->left == 0 ? TN_OK : TN_EPROTO;
}

tn_wr tn_wr_init(size_t limit) {
    tn_wr w = {.limit = limit};

    return w;
}

tn_wr tn_wr_fixed(void *p, size_t cap) {
    tn_wr w = {.p = p, .cap = cap, .limit = cap, .fixed = true};

    return w;
}

void tn_wr_release(tn_wr *w) {
    if (!w->fixed)
        free(w->p);
    w->p = NULL;
    w->len = w->cap = 0;
}

uint8_t *tn_wr_room(tn_wr *w, size_t n) {
    uint8_t *p;

    if (w->fail != TN_OK)
        return NULL;
    if (n > w->limit - w->len) {
        w->fail = TN_ETOOBIG;
        return NULL;
    }
    if (n > w->cap - w->len || (w->p == NULL && !w->fixed)) {
        size_t cap = w->cap < 128 ? 128 : w->cap * 2;

        if (cap < w->len + n)
            cap = w->len + n;
        if (cap > w->limit)
            cap = w->limit;
        p = realloc(w->p, cap > 0 ? cap : 1);
        if (p == NULL) {
            w->fail = TN_ENOMEM;
            return NULL;
        }
        w->p = p;
        w->cap = cap;
    }
    p = w->p + w->len;
    w->len += n;
    return p;
}

static void wr_le(tn_wr *w, uint64_t v, size_t n) {
    uint8_t *p = tn_wr_room(w, n);

    if (p == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

void tn_wr_u8(tn_wr *w, uint8_t v) { wr_le(w, v, 1); }
void tn_wr_u16(tn_wr *w, uint16_t v) { wr_le(w, v, 2); }
void tn_wr_u32(tn_wr *w, uint32_t v) { wr_le(w, v, 4); }
void tn_wr_u64(tn_wr *w, uint64_t v) { wr_le(w, v, 8); }

void tn_wr_bytes(tn_wr *w, const void *p, size_t n) {
    uint8_t *to = tn_wr_room(w, n);

    if (to != NULL && n != 0)
        memcpy(to, p, n);
}

/* Bytes to and from peers: little-endian, bounds-checked, with sticky failure: read everything, check once with
 * tn_rd_end, then act. Nothing here trusts a length that it has not compared with what is left. */
#ifndef TN_CORE_WIRE_H
#define TN_CORE_WIRE_H

#include "core/tensor.h"

typedef struct tn_rd {
    const uint8_t *p;
    size_t left;
    tn_code fail; /* TN_OK until the first short or refused read; sticky */
} tn_rd;

/* Either grows on the heap up to `limit` (tn_wr_init) or fills fixed memory (tn_wr_fixed). */
typedef struct tn_wr {
    uint8_t *p;
    size_t len, cap, limit;
    bool fixed;
    tn_code fail; /* TN_ETOOBIG or TN_ENOMEM, sticky */
} tn_wr;

TN_API tn_rd tn_rd_init(const void *p, size_t n);
TN_API uint8_t tn_rd_u8(tn_rd *r);
TN_API uint16_t tn_rd_u16(tn_rd *r);
TN_API uint32_t tn_rd_u32(tn_rd *r);
TN_API uint64_t tn_rd_u64(tn_rd *r);
/* A view of the next n bytes, NULL (and failed) when fewer are left. */
TN_API const uint8_t *tn_rd_take(tn_rd *r, size_t n);
/* A count of things of at least min_each bytes: fails when it is over max or cannot fit in what is left. */
TN_API uint32_t tn_rd_count(tn_rd *r, size_t min_each, uint32_t max);
/* The failure, or TN_EPROTO when bytes are left over. */
TN_API tn_code tn_rd_end(const tn_rd *r);

TN_API tn_wr tn_wr_init(size_t limit);
TN_API tn_wr tn_wr_fixed(void *p, size_t cap);
TN_API void tn_wr_release(tn_wr *w); /* frees the heap form; safe to call twice */
/* n writable bytes at the end, counted as written; NULL (and failed) over the limit. */
TN_API uint8_t *tn_wr_room(tn_wr *w, size_t n);
TN_API void tn_wr_u8(tn_wr *w, uint8_t v);
TN_API void tn_wr_u16(tn_wr *w, uint16_t v);
TN_API void tn_wr_u32(tn_wr *w, uint32_t v);
TN_API void tn_wr_u64(tn_wr *w, uint64_t v);
TN_API void tn_wr_bytes(tn_wr *w, const void *p, size_t n);

#endif

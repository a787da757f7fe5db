/* What dist_rank fills its tensors with, and how it arranges and compares them. */
#ifndef TN_TESTS_DIST_VALUES_H
#define TN_TESTS_DIST_VALUES_H

#include "tests/sim/dist_rank.h"

/* ---- Values: differ by rank, element and place; small, so that sums stay exact where they can ---- */

static inline unsigned value(int rank, size_t i, unsigned salt) {
    return (unsigned)((i * 2654435761u) >> 7) % 11 + (unsigned)rank * 3 + salt % 5;
}

static inline void fill(uint8_t *p, tn_dtype d, size_t n, int rank, unsigned salt) {
    size_t i, es = tn_dtype_size(d);

    for (i = 0; i < n; i++, p += es) {
        unsigned v = value(rank, i, salt);
        float f = (float)v * 0.75f + 0.125f;
        double x = (double)f;
        float c[2] = {f, -f};
        double z[2] = {x, -x};
        uint16_t half = (uint16_t)(0x3800 + v * 37), brain = (uint16_t)(0x3f80 + v * 3);

        switch (d) {
        case TN_BOOL:
            *p = v % 3 == 0;
            break;
        case TN_F16:
            memcpy(p, &half, 2);
            break;
        case TN_BF16:
            memcpy(p, &brain, 2);
            break;
        case TN_F32:
            memcpy(p, &f, 4);
            break;
        case TN_F64:
            memcpy(p, &x, 8);
            break;
        case TN_C64:
            memcpy(p, c, 8);
            break;
        case TN_C128:
            memcpy(p, z, 16);
            break;
        case TN_F8_E4M3:
        case TN_F8_E5M2:
        case TN_F8_E4M3FNUZ:
        case TN_F8_E5M2FNUZ:
        case TN_F8_E8M0:
            *p = (uint8_t)(0x20 + v % 24);
            break;
        default: { /* integers; the sign too where there is one */
            int64_t s = (int64_t)v - (tn_dtype_size(d) > 1 ? 7 : 0);
            uint8_t bytes[8];

            memcpy(bytes, &s, 8);
            memcpy(p, bytes, es); /* little-endian */
        }
        }
    }
}

/* What `op` over all ranks' values gives. */
static inline void expect_reduced(uint8_t *out, tn_op op, tn_dtype d, size_t n, unsigned salt,
                                  const double *weights) {
    const void *src[MAX_RANKS];
    uint8_t *all[MAX_RANKS];
    int r;

    for (r = 0; r < opt.size; r++) {
        src[r] = all[r] = malloc(n * tn_dtype_size(d) + 1);
        fill(all[r], d, n, r, salt);
    }
    if (n > 0)
        tn_k_reduce(op, d, out, src, weights, (size_t)opt.size, n);
    for (r = 0; r < opt.size; r++)
        free(all[r]);
}

static uint64_t digest = 14695981039346656037u;

static inline void hash(const void *p, size_t n) {
    const uint8_t *b = p;
    size_t i;

    for (i = 0; i < n; i++)
        digest = (digest ^ b[i]) * 1099511628211u;
}

static inline void same(const char *what, tn_dtype d, size_t n, const void *got, const void *want) {
    size_t es = tn_dtype_size(d), i;

    for (i = 0; i < n; i++)
        if (memcmp((const uint8_t *)got + i * es, (const uint8_t *)want + i * es, es) != 0)
            die("%s of %zu %s: element %zu is wrong", what, n, tn_dtype_name(d), i);
}

/* ---- Layouts: each is the same values in another arrangement, with guard bytes in the gaps ---- */

typedef enum layout { PACKED, COLUMN, REVERSED_ROWS, LAYOUTS } layout;

typedef struct block {
    uint8_t *store;
    size_t bytes;
    tn_tensor t;
} block;

static inline block block_new(tn_dtype d, size_t n, layout how) {
    block b = {0};
    size_t es = tn_dtype_size(d);
    int64_t shape[2] = {(int64_t)n, 1}, stride[2] = {2, 1};
    tn_err err = TN_ERR_INIT;
    int64_t first = 0;

    b.bytes = (2 * n + 2) * es;
    b.store = malloc(b.bytes);
    memset(b.store, 0x5a, b.bytes);
    if (how == PACKED) {
        need(tn_tensor_init(&b.t, b.store, (int)d, 1, shape, &err), &err);
        return b;
    }
    if (how == REVERSED_ROWS && n > 0) { /* negative strides, as numpy makes them */
        stride[0] = -2;
        first = 2 * (int64_t)(n - 1);
    }
    need(tn_tensor_init_strided(&b.t, b.store + (size_t)first * es, (int)d, 2, shape, stride, &err), &err);
    return b;
}

static inline void block_fill(block *b, int rank, unsigned salt) {
    size_t n = (size_t)tn_tensor_numel(&b->t);
    uint8_t *p = malloc(tn_tensor_nbytes(&b->t) + 1);

    fill(p, b->t.dtype, n, rank, salt);
    tn_tensor_unpack(&b->t, p);
    free(p);
}

static inline void block_same(const char *what, const block *b, const void *want) {
    size_t n = (size_t)tn_tensor_numel(&b->t), bytes = tn_tensor_nbytes(&b->t);
    size_t es = tn_dtype_size(b->t.dtype), i;
    uint8_t *p = malloc(bytes + 1);

    tn_tensor_pack(&b->t, p);
    same(what, b->t.dtype, n, p, want);
    free(p);
    for (i = tn_tensor_contiguous(&b->t) && b->t.ndim == 1 ? bytes : es; i < b->bytes; i++) {
        size_t element = i / es;

        if (b->t.ndim == 2 && element % 2 == 0 && element < 2 * n)
            continue; /* a part of the view */
        if (b->store[i] != 0x5a)
            die("%s: byte %zu outside the view was written", what, i);
    }
}

#endif

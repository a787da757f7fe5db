/* The check of TN_DEBUG=DETAIL: before each collective every rank tells every other what it is about to do, so
 * that a difference is told to all of them with the ranks that differ and how, before a byte of a tensor has
 * moved.
 *
 * Without it each message is still compared with the one that was expected (link.c), which finds whatever would
 * corrupt memory; but a rank sees only what is sent to it, and messages carry bytes, not shapes and roots. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/wire.h"
#include "dist/internal.h"

#define CARD ((size_t)96) /* bytes: a card is filled up with zeros */

/* Shapes may differ by rank in the operations that move parts of their own size. */
static bool same_shapes(tni_type kind) {
    return kind == TNI_ALLREDUCE || kind == TNI_BROADCAST || kind == TNI_REDUCE;
}

static uint64_t hash_shapes(const tn_tensor *t, size_t n) {
    uint64_t h = 14695981039346656037u; /* FNV-1a, over words; no adversary here */
    size_t i;
    int d;

    for (i = 0; i < n; i++) {
        h = (h ^ (uint64_t)t[i].dtype) * 1099511628211u;
        for (d = 0; d < t[i].ndim; d++)
            h = (h ^ (uint64_t)t[i].shape[d]) * 1099511628211u;
        h = (h ^ 0xffu) * 1099511628211u;
    }
    return h;
}

/* kind, op, dtype, dimensions (0xff: may differ), root, tensors, hash of all shapes, shape of the first. */
static void fill(uint8_t card[CARD], const tni_op *op) {
    const tn_tensor *t = op->nin > 0 ? op->in : op->nout > 0 ? op->out : NULL;
    bool shapes = same_shapes(op->kind), rooted = false;
    tn_wr w = tn_wr_fixed(card, CARD);
    int d;

    memset(card, 0, CARD);
    rooted = op->kind == TNI_BROADCAST || op->kind == TNI_REDUCE || op->kind == TNI_GATHER ||
             op->kind == TNI_SCATTER;
    tn_wr_u8(&w, (uint8_t)op->kind);
    tn_wr_u8(&w, (uint8_t)op->redop);
    tn_wr_u8(&w, t != NULL ? (uint8_t)t->dtype : 0);
    tn_wr_u8(&w, shapes && t != NULL ? (uint8_t)t->ndim : 0xff);
    tn_wr_u32(&w, rooted ? (uint32_t)op->root : 0);
    tn_wr_u32(&w, shapes ? (uint32_t)op->nin : 0);
    tn_wr_u64(&w, shapes ? hash_shapes(op->in, op->nin) : 0);
    for (d = 0; shapes && t != NULL && d < t->ndim && d < TN_MAX_DIMS; d++)
        tn_wr_u64(&w, (uint64_t)t->shape[d]);
}

/* "broadcast of float32 [2, 5] from root 1" */
static void describe(char *out, size_t cap, const uint8_t card[CARD]) {
    tn_rd r = tn_rd_init(card, CARD);
    unsigned kind = tn_rd_u8(&r), op = tn_rd_u8(&r), dtype = tn_rd_u8(&r), ndim = tn_rd_u8(&r), d;
    unsigned long root = tn_rd_u32(&r), n = tn_rd_u32(&r);
    bool reduces = kind == TNI_ALLREDUCE || kind == TNI_REDUCE || kind == TNI_REDUCE_SCATTER;
    size_t at;

    (void)tn_rd_u64(&r);
    if (kind == TNI_REFUSED || kind == TNI_BARRIER) {
        snprintf(out, cap, "%s",
                 kind == TNI_BARRIER ? "barrier" : "something with arguments that it refused itself");
        return;
    }
    snprintf(out, cap, "%s%s%s of %s", tni_type_name(kind), reduces ? " " : "",
             !reduces ? "" : op < TN_OP_COUNT ? tn_op_name((tn_op)op) : "?",
             tn_dtype_valid((int)dtype) ? tn_dtype_name((tn_dtype)dtype) : "?");
    at = strlen(out);
    for (d = 0; ndim <= TN_MAX_DIMS && d <= ndim && at + 24 < cap; at += strlen(out + at), d++) {
        if (d == ndim)
            snprintf(out + at, cap - at, "%s", ndim == 0 ? " []" : "]");
        else
            snprintf(out + at, cap - at, "%s%lld", d == 0 ? " [" : ", ", (long long)tn_rd_u64(&r));
    }
    if (n > 1 && at + 40 < cap)
        at += (size_t)snprintf(out + at, cap - at, " and %lu more", n - 1);
    if (kind == TNI_BROADCAST || kind == TNI_SCATTER)
        snprintf(out + at, cap - at, " from root %lu", root);
    else if (kind == TNI_REDUCE || kind == TNI_GATHER)
        snprintf(out + at, cap - at, " to root %lu", root);
}

static int like(const uint8_t *cards, int size, int rank, bool *set) {
    int n = 0, r;

    for (r = 0; r < size; r++) {
        bool same = memcmp(cards + (size_t)r * CARD, cards + (size_t)rank * CARD, CARD) == 0;

        n += same;
        if (set != NULL)
            set[r] = same;
    }
    return n;
}

/* The cards differ: what most ranks do is what was meant, in doubt what the lowest rank does. */
static void tell(tn_pg *g, const tni_op *op, const uint8_t *cards, bool *set) {
    char most[160], other[160], list[100], text[TNI_FAIL_TEXT];
    int best = 0, odd = 0, r, n = 0;

    for (r = 0; r < g->size; r++) {
        int count = like(cards, g->size, r, NULL);

        if (count > n) {
            n = count;
            best = r;
        }
    }
    (void)like(cards, g->size, best, set);
    while (odd < g->size - 1 && set[odd])
        odd++;
    describe(most, sizeof(most), cards + (size_t)best * CARD);
    (void)like(cards, g->size, odd, set);
    describe(other, sizeof(other), cards + (size_t)odd * CARD);
    tni_rank_list(list, sizeof(list), set, g->size);
    n = snprintf(text, sizeof(text), "%s: %s", list, other);
    (void)like(cards, g->size, best, set);
    tni_rank_list(list, sizeof(list), set, g->size);
    snprintf(text + n, sizeof(text) - (size_t)n, "; %s: %s%s", list, most,
             strcmp(most, other) == 0 ? " (the shapes differ further on)" : "");
    tni_fail(g, odd, -1, TN_ESHAPE, op->seq, text);
}

tn_code tni_check(tn_pg *g, const tni_op *op, tni_lists *l, tn_err *err) {
    tni_op probe = *op;
    uint8_t *cards = calloc((size_t)g->size, CARD);
    bool *set = calloc((size_t)g->size, sizeof(*set));
    tn_code code = TN_OK;
    int r;

    if (cards == NULL || set == NULL) {
        code = tn_fail(err, TN_ENOMEM, "no memory for the check of an operation");
        goto out;
    }
    probe.kind = TNI_CHECK;
    probe.redop = TN_SUM;
    fill(cards + (size_t)g->rank * CARD, op);
    for (r = 0; r < g->size; r++) {
        l->send[r] = cards + (size_t)g->rank * CARD;
        l->recv[r] = cards + (size_t)r * CARD;
        l->send_bytes[r] = l->recv_bytes[r] = CARD;
    }
    code = tni_exchange(g, &probe, TN_U8, l);
    if (code == TN_OK && like(cards, g->size, g->rank, NULL) != g->size) {
        if (!g->failed)
            tell(g, op, cards, set);
        code = TN_EPEER; /* the group's failure is the error */
    }
out:
    free(cards);
    free(set);
    return code;
}

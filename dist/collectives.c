/* The algorithms. Each runs on the progress thread with the group's lock held, which it lets go of to wait
 * and to compute. Messages between two ranks follow each other in the same order on both sides, so nothing
 * is ever reordered.
 *
 * All-reduce, small: everyone sends everything to everyone and reduces all of it itself. Large: rank r owns
 * the r-th of `size` equal blocks, receives that block of everyone, reduces it and hands the result to
 * everyone (reduce-scatter and all-gather, Thakur, Rabenseifner and Gropp, "Optimization of collective
 * communication operations in MPICH", IJHPCA 2005, section 4.5, here with direct exchange instead of
 * recursive halving, so that every element is reduced once, over all ranks in rank order: the bits do not
 * depend on the algorithm). Blocks are cut in segments; TNI_DEPTH of them are in flight, so that receiving,
 * reducing and sending overlap. What is sent leaves from the tensor, results arrive in the tensor, and only
 * parts that are yet to be reduced are staged.
 *
 * The tag of a frame is the number of bytes of the whole transfer between the two ranks (saturated at 32
 * bits) of which it is a part, so that a difference in size is seen in the first frame. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/internal.h"

#define FLAT_MAX_RANKS 4 /* a broadcast to more goes down a tree */

/* ---- Packed memory for views and lists of views ---- */

typedef struct flat {
    uint8_t *p;
    size_t bytes;
    tn_dtype dtype;
    uint8_t *owned; /* p, when it had to be packed */
    const tn_tensor *t;
    size_t n;
} flat;

static uint8_t nothing[1]; /* where empty tensors are: pointer arithmetic wants an object */

/* A list of views as one run of elements: in place when it is one contiguous tensor. */
static tn_code flat_open(tn_pg *g, flat *f, const tn_tensor *t, size_t n, bool fill, tn_err *err) {
    size_t i, at = 0;

    *f = (flat){.t = t, .n = n, .dtype = t[0].dtype};
    for (i = 0; i < n; i++)
        f->bytes += tn_tensor_nbytes(&t[i]);
    if (f->bytes == 0) {
        f->p = nothing;
        return TN_OK;
    }
    if (n == 1 && tn_tensor_contiguous(t)) {
        f->p = t->data;
        return TN_OK;
    }
    f->owned = f->p = malloc(f->bytes);
    if (f->p == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory to pack %zu bytes", f->bytes);
    if (!fill)
        return TN_OK;
    pthread_mutex_unlock(&g->lock);
    for (i = 0; i < n; i++) {
        tn_tensor_pack(&t[i], f->p + at);
        at += tn_tensor_nbytes(&t[i]);
    }
    tni_lock(g);
    return TN_OK;
}

/* Writes the elements back into the views, when they were packed. */
static void flat_store(tn_pg *g, const flat *f) {
    size_t i, at = 0;

    if (f->owned == NULL)
        return;
    pthread_mutex_unlock(&g->lock);
    for (i = 0; i < f->n; i++) {
        tn_tensor_unpack(&f->t[i], f->owned + at);
        at += tn_tensor_nbytes(&f->t[i]);
    }
    tni_lock(g);
}

static void flat_close(flat *f) {
    free(f->owned);
    f->owned = NULL;
}

static void flats_close(flat *f, int n) {
    int i;

    for (i = 0; f != NULL && i < n; i++)
        flat_close(&f[i]);
    free(f);
}

static flat *flats_open(tn_pg *g, const tn_tensor *t, int n, bool fill, tn_err *err) {
    flat *f = calloc((size_t)n, sizeof(*f));
    int i;

    if (f == NULL) {
        tn_fail(err, TN_ENOMEM, "no memory for %d buffers", n);
        return NULL;
    }
    for (i = 0; i < n; i++) {
        if (flat_open(g, &f[i], &t[i], 1, fill, err) != TN_OK) {
            flats_close(f, n);
            return NULL;
        }
    }
    return f;
}

static void copy(tn_pg *g, void *dst, const void *src, size_t n) {
    if (n == 0 || dst == src)
        return;
    pthread_mutex_unlock(&g->lock);
    memmove(dst, src, n);
    tni_lock(g);
}

/* ---- Messages of one operation ---- */

static tn_frame frame_of(const tni_op *op, tn_dtype dtype, size_t total, size_t size) {
    return (tn_frame){
        .type = (uint8_t)op->kind,
        .flags = (uint16_t)((unsigned)op->redop << 8 | (unsigned)dtype),
        .tag = total < UINT32_MAX ? (uint32_t)total : UINT32_MAX,
        .id = op->seq,
        .size = size,
    };
}

static void post(tn_pg *g, int peer, bool send, tni_msg *m, tn_frame f, void *data, int *pending) {
    *m = (tni_msg){.frame = f, .data = data, .pending = pending};
    ++*pending;
    if (send)
        tni_send(tni_link_of(g, peer, TNI_COLL), m);
    else
        tni_expect(tni_link_of(g, peer, TNI_COLL), m);
}

/* A peer at distance i = 1 .. size-1: everyone begins with another. */
static int peer_at(const tn_pg *g, int i) { return (g->rank + i) % g->size; }

/* One whole message to and from every other rank: send[p], recv[p] with `bytes` of them; NULL arrays: none. The
 * msgs (2 * size) must live until it returns. */
static tn_code exchange(tn_pg *g, tni_op *op, tn_dtype dtype, uint8_t *const *send, const size_t *send_bytes,
                        uint8_t *const *recv, const size_t *recv_bytes, tni_msg *msgs) {
    int sends = 0, recvs = 0, i;
    tn_code code;

    for (i = 1; i < g->size; i++) {
        int to = peer_at(g, i), from = peer_at(g, g->size - i);

        if (send != NULL)
            post(g, to, true, &msgs[to], frame_of(op, dtype, send_bytes[to], send_bytes[to]), send[to], &sends);
        if (recv != NULL)
            post(g, from, false, &msgs[g->size + from], frame_of(op, dtype, recv_bytes[from], recv_bytes[from]),
                 recv[from], &recvs);
    }
    code = tni_wait(g, op, &recvs);
    return code == TN_OK ? tni_wait(g, op, &sends) : code;
}

tn_code tni_exchange(tn_pg *g, tni_op *op, tn_dtype dtype, tni_lists *l) {
    return exchange(g, op, dtype, l->send, l->send_bytes, l->recv, l->recv_bytes, l->msgs);
}

static tn_code lists_new(tni_lists *l, int size, tn_err *err) {
    size_t n = (size_t)size;
    uint8_t *p = calloc(n, sizeof(tni_msg) * 2 + sizeof(double) + 3 * sizeof(void *) + 2 * sizeof(size_t));

    *l = (tni_lists){0};
    if (p == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for an operation among %d ranks", size);
    l->msgs = (tni_msg *)(void *)p;
    p += 2 * n * sizeof(tni_msg);
    l->weights = (double *)(void *)p;
    p += n * sizeof(double);
    l->send = (uint8_t **)(void *)p;
    p += n * sizeof(void *);
    l->recv = (uint8_t **)(void *)p;
    p += n * sizeof(void *);
    l->src = (const void **)(void *)p;
    p += n * sizeof(void *);
    l->send_bytes = (size_t *)(void *)p;
    p += n * sizeof(size_t);
    l->recv_bytes = (size_t *)(void *)p;
    return TN_OK;
}

static void lists_free(tni_lists *l) { free(l->msgs); }

/* ---- Weights ---- */

static bool weighted(tn_op op) { return op == TN_PREMUL_SUM || op == TN_WMEAN; }

/* Every rank judges all weights, so all come to the same verdict. */
static tn_code check_weights(const tn_pg *g, const tni_op *op, const double *w, tn_err *err) {
    double sum = 0;
    int r;

    if (op->redop != TN_WMEAN)
        return TN_OK;
    for (r = 0; r < g->size; r++) {
        if (!isfinite(w[r]) || w[r] < 0)
            return tn_fail(err, TN_EINVAL, "the weight of rank %d is %g: weights are finite and not negative",
                           r, w[r]);
        sum += w[r];
    }
    if (!(sum > 0) || !isfinite(sum))
        return tn_fail(err, TN_EINVAL,
                       "the weights of all ranks add up to %g: a mean needs a finite sum above 0", sum);
    return TN_OK;
}

/* All ranks' weights into l->weights; the dtype in the frames is the tensor's, so that it is compared too. */
static tn_code share_weights(tn_pg *g, tni_op *op, tn_dtype dtype, tni_lists *l, tn_err *err) {
    int r;
    tn_code code;

    _Static_assert(sizeof(double) == 8, "weights travel as 8 bytes");
    if (!weighted(op->redop))
        return TN_OK;
    l->weights[g->rank] = op->weight;
    for (r = 0; r < g->size; r++) {
        l->send[r] = (uint8_t *)&l->weights[g->rank];
        l->recv[r] = (uint8_t *)&l->weights[r];
        l->send_bytes[r] = l->recv_bytes[r] = sizeof(double);
    }
    code = tni_exchange(g, op, dtype, l);
    return code == TN_OK ? check_weights(g, op, l->weights, err) : code;
}

static void reduce(tn_pg *g, const tni_op *op, tn_dtype dtype, void *dst, const tni_lists *l, size_t n) {
    if (n == 0)
        return;
    pthread_mutex_unlock(&g->lock);
    tn_k_reduce(op->redop, dtype, dst, l->src, l->weights, (size_t)g->size, n);
    tni_lock(g);
}

/* ---- Reductions ---- */

/* Everything to everyone, or to the root; whoever has it all reduces it. */
static tn_code reduce_small(tn_pg *g, tni_op *op, flat *f, tni_lists *l, tn_err *err) {
    size_t stride = (f->bytes + 63) / 64 * 64, n = f->bytes / tn_dtype_size(f->dtype);
    bool collect = op->kind == TNI_ALLREDUCE || g->rank == op->root;
    uint8_t *buf = tni_scratch(g, stride * (size_t)g->size + 64);
    int sends = 0, recvs = 0, i;
    tn_code code;

    if (buf == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory to reduce %zu bytes", f->bytes);
    if (f->bytes > 0) /* sent from a copy, as the result may be written meanwhile */
        memcpy(buf + stride * (size_t)g->rank, f->p, f->bytes);
    for (i = 0; i < g->size; i++)
        l->src[i] = buf + stride * (size_t)i;
    for (i = 1; i < g->size; i++) {
        int to = peer_at(g, i), from = peer_at(g, g->size - i);
        tn_frame fr = frame_of(op, f->dtype, f->bytes, f->bytes);

        if (op->kind == TNI_ALLREDUCE || to == op->root)
            post(g, to, true, &l->msgs[to], fr, buf + stride * (size_t)g->rank, &sends);
        if (collect)
            post(g, from, false, &l->msgs[g->size + from], fr, buf + stride * (size_t)from, &recvs);
    }
    code = tni_wait(g, op, &recvs);
    if (code == TN_OK && collect)
        reduce(g, op, f->dtype, f->p, l, n);
    return code == TN_OK ? tni_wait(g, op, &sends) : code;
}

/* A reduction by blocks. Counts are in elements. */
typedef struct blocks {
    tn_dtype dtype;
    size_t total;         /* bytes of the whole tensor, for the tags */
    uint8_t **src;        /* [size]: this rank's contribution to each block */
    size_t *count;        /* [size] */
    uint8_t *dst;         /* where this rank's block is reduced to; NULL: to scratch */
    uint8_t **gather;     /* [size]: where the others' results go; NULL: this rank does not get them */
    int to;               /* who gets the results: -1 all, -2 nobody else, else that rank */
} blocks;

typedef struct pipeline {
    tni_msg *rs_send, *rs_recv, *ag_send, *ag_recv; /* [TNI_DEPTH * size] */
    int rs_sends[TNI_DEPTH], rs_recvs[TNI_DEPTH], ag_sends[TNI_DEPTH], ag_recvs[TNI_DEPTH];
    size_t seg, steps; /* elements in a segment; segments of the longest block */
    size_t es;
    uint8_t *stage; /* [TNI_DEPTH][size][seg] elements */
} pipeline;

static size_t seg_count(const pipeline *p, size_t count, size_t step) {
    size_t at = step * p->seg;

    return at >= count ? 0 : (count - at < p->seg ? count - at : p->seg);
}

/* What follows a pointer that may be NULL when there is nothing there. */
static uint8_t *seg_at(const pipeline *p, uint8_t *base, size_t step) {
    return base != NULL ? base + step * p->seg * p->es : NULL;
}

static uint8_t *stage_of(const tn_pg *g, const pipeline *p, size_t step, int rank) {
    return p->stage + ((step % TNI_DEPTH) * (size_t)g->size + (size_t)rank) * p->seg * p->es;
}

/* Parts of segment `step` leave for the owners of their blocks; those of this rank's block are expected. */
static tn_code scatter_step(tn_pg *g, tni_op *op, const blocks *b, pipeline *p, size_t step) {
    size_t slot = step % TNI_DEPTH;
    tn_code code = tni_wait(g, op, &p->rs_sends[slot]);
    int i;

    for (i = 1; i < g->size && code == TN_OK; i++) {
        int to = peer_at(g, i), from = peer_at(g, g->size - i);
        size_t out = seg_count(p, b->count[to], step) * p->es,
               in = seg_count(p, b->count[g->rank], step) * p->es;

        post(g, to, true, &p->rs_send[slot * (size_t)g->size + (size_t)to],
             frame_of(op, b->dtype, b->total, out), seg_at(p, b->src[to], step), &p->rs_sends[slot]);
        post(g, from, false, &p->rs_recv[slot * (size_t)g->size + (size_t)from],
             frame_of(op, b->dtype, b->total, in), stage_of(g, p, step, from), &p->rs_recvs[slot]);
    }
    return code;
}

static tn_code reduce_step(tn_pg *g, tni_op *op, const blocks *b, pipeline *p, tni_lists *l, size_t step) {
    size_t slot = step % TNI_DEPTH;
    tn_code code = tni_wait(g, op, &p->rs_recvs[slot]);
    uint8_t *dst = b->dst != NULL ? seg_at(p, b->dst, step) : stage_of(g, p, step, g->rank);
    int r;

    if (code == TN_OK)
        code = tni_wait(g, op, &p->ag_sends[slot]); /* the result before last may still leave from scratch */
    if (code != TN_OK)
        return code;
    for (r = 0; r < g->size; r++)
        l->src[r] = r == g->rank ? seg_at(p, b->src[r], step) : stage_of(g, p, step, r);
    reduce(g, op, b->dtype, dst, l, seg_count(p, b->count[g->rank], step));
    return TN_OK;
}

/* The reduced segment leaves for those who get it; those of the others are expected. */
static tn_code gather_step(tn_pg *g, tni_op *op, const blocks *b, pipeline *p, size_t step) {
    size_t slot = step % TNI_DEPTH, out = seg_count(p, b->count[g->rank], step) * p->es;
    uint8_t *from_here = b->dst != NULL ? seg_at(p, b->dst, step) : stage_of(g, p, step, g->rank);
    tn_code code = tni_wait(g, op, &p->ag_recvs[slot]);
    int i;

    for (i = 1; i < g->size && code == TN_OK; i++) {
        int to = peer_at(g, i), from = peer_at(g, g->size - i);
        size_t in = seg_count(p, b->count[from], step) * p->es;

        if (b->to == -1 || b->to == to)
            post(g, to, true, &p->ag_send[slot * (size_t)g->size + (size_t)to],
                 frame_of(op, b->dtype, b->total, out), from_here, &p->ag_sends[slot]);
        if (b->gather != NULL)
            post(g, from, false, &p->ag_recv[slot * (size_t)g->size + (size_t)from],
                 frame_of(op, b->dtype, b->total, in), seg_at(p, b->gather[from], step), &p->ag_recvs[slot]);
    }
    return code;
}

/* The order of messages between two ranks: the parts of the first TNI_DEPTH segments, then in turn the
 * result of segment j and the part of segment j + TNI_DEPTH. */
static tn_code reduce_blocks(tn_pg *g, tni_op *op, const blocks *b, tni_lists *l, tn_err *err) {
    pipeline p = {.es = tn_dtype_size(b->dtype)};
    size_t n = (size_t)g->size * TNI_DEPTH, longest = 0, j, k;
    tni_msg *msgs = calloc(4 * n, sizeof(*msgs));
    tn_code code = TN_OK;
    int r;

    for (r = 0; r < g->size; r++)
        longest = b->count[r] > longest ? b->count[r] : longest;
    p.seg = g->segment / p.es > 0 ? g->segment / p.es : 1;
    if (p.seg > longest)
        p.seg = longest > 0 ? longest : 1;
    p.steps = longest > 0 ? (longest + p.seg - 1) / p.seg : 1;
    p.stage = tni_scratch(g, n * p.seg * p.es);
    if (msgs == NULL || p.stage == NULL) {
        free(msgs);
        return tn_fail(err, TN_ENOMEM, "no memory to reduce %zu bytes", b->total);
    }
    p.rs_send = msgs;
    p.rs_recv = msgs + n;
    p.ag_send = msgs + 2 * n;
    p.ag_recv = msgs + 3 * n;
    for (j = 0; j < TNI_DEPTH && j < p.steps && code == TN_OK; j++)
        code = scatter_step(g, op, b, &p, j);
    for (j = 0; j < p.steps && code == TN_OK; j++) {
        code = reduce_step(g, op, b, &p, l, j);
        if (code == TN_OK && b->to != -2)
            code = gather_step(g, op, b, &p, j);
        if (code == TN_OK && j + TNI_DEPTH < p.steps)
            code = scatter_step(g, op, b, &p, j + TNI_DEPTH);
    }
    for (k = 0; k < TNI_DEPTH && code == TN_OK; k++) {
        code = tni_wait(g, op, &p.rs_sends[k]);
        if (code == TN_OK)
            code = tni_wait(g, op, &p.ag_sends[k]);
        if (code == TN_OK)
            code = tni_wait(g, op, &p.ag_recvs[k]);
    }
    free(msgs);
    return code;
}

static tn_code run_reduce(tn_pg *g, tni_op *op, tni_lists *l, tn_err *err) {
    bool here = op->kind == TNI_ALLREDUCE || g->rank == op->root;
    flat f = {0};
    tn_code code = flat_open(g, &f, op->in, op->nin, true, err);

    if (code == TN_OK)
        code = share_weights(g, op, f.dtype, l, err);
    if (code == TN_OK && f.bytes <= g->small_max) {
        code = reduce_small(g, op, &f, l, err);
    } else if (code == TN_OK) {
        size_t es = tn_dtype_size(f.dtype), n = f.bytes / es, each = n / (size_t)g->size,
               more = n % (size_t)g->size;
        blocks b = {.dtype = f.dtype, .total = f.bytes, .src = l->send, .count = l->send_bytes,
                    .gather = here ? l->send : NULL, .to = op->kind == TNI_ALLREDUCE ? -1 : op->root};
        size_t at = 0, r;

        for (r = 0; r < (size_t)g->size; r++) {
            b.src[r] = f.p + at * es;
            b.count[r] = each + (r < more);
            at += b.count[r];
        }
        b.dst = here ? b.src[g->rank] : NULL; /* elsewhere the tensor is input only */
        code = reduce_blocks(g, op, &b, l, err);
    }
    if (code == TN_OK && here)
        flat_store(g, &f);
    flat_close(&f);
    return code;
}

static tn_code run_reduce_scatter(tn_pg *g, tni_op *op, tni_lists *l, tn_err *err) {
    flat *in = flats_open(g, op->in, g->size, true, err), out = {0};
    blocks b = {.src = l->send, .count = l->send_bytes, .to = -2};
    tn_code code = in != NULL ? flat_open(g, &out, op->out, 1, false, err) : err->code;
    int r;

    if (code == TN_OK)
        code = share_weights(g, op, out.dtype, l, err);
    if (code == TN_OK) {
        for (r = 0; r < g->size; r++) {
            b.src[r] = in[r].p;
            b.count[r] = in[r].bytes / tn_dtype_size(out.dtype);
            b.total += in[r].bytes;
        }
        b.dtype = out.dtype;
        b.dst = out.p;
        code = reduce_blocks(g, op, &b, l, err);
    }
    if (code == TN_OK)
        flat_store(g, &out);
    flat_close(&out);
    flats_close(in, g->size);
    return code;
}

/* ---- Moving ---- */

/* Parent and children in a binomial tree over ranks counted from the root (Thakur et al., section 4.4), or
 * the root with all others as its children. Returns the number of children; *parent is -1 at the root. */
static int family(const tn_pg *g, int root, bool tree, int *parent, int *children) {
    int v = (g->rank - root + g->size) % g->size, bit = 1, n = 0, i;

    *parent = -1;
    if (!tree) {
        if (v != 0)
            *parent = root;
        for (i = 1; v == 0 && i < g->size; i++)
            children[n++] = (root + i) % g->size;
        return n;
    }
    while (bit < g->size && !(v & bit))
        bit <<= 1;
    if (v != 0)
        *parent = ((v & ~bit) + root) % g->size;
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (v + bit < g->size)
            children[n++] = (v + bit + root) % g->size;
    return n;
}

/* Down the tree by segments: TNI_DEPTH of them are received ahead, each is forwarded when it is there. */
static tn_code pass_down(tn_pg *g, tni_op *op, const flat *f, int parent, const int *children, int n,
                         tn_err *err) {
    size_t seg = g->size <= FLAT_MAX_RANKS || f->bytes <= g->segment ? f->bytes : g->segment;
    size_t steps = seg > 0 ? (f->bytes + seg - 1) / seg : 1, j, expected = 0;
    int sends[TNI_DEPTH] = {0}, recvs[TNI_DEPTH] = {0}, c;
    tni_msg *msgs = calloc((size_t)(n + 1) * TNI_DEPTH, sizeof(*msgs));
    tn_code code = TN_OK;

    if (msgs == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a broadcast");
    for (j = 0; j < steps && code == TN_OK; j++) {
        size_t slot = j % TNI_DEPTH, at = j * seg, size = f->bytes - at < seg ? f->bytes - at : seg;

        for (; parent >= 0 && expected < steps && expected < j + TNI_DEPTH; expected++) {
            size_t s = expected % TNI_DEPTH, from = expected * seg;
            size_t len = f->bytes - from < seg ? f->bytes - from : seg;

            post(g, parent, false, &msgs[s * (size_t)(n + 1)], frame_of(op, f->dtype, f->bytes, len),
                 f->p + from, &recvs[s]);
        }
        code = tni_wait(g, op, &recvs[slot]);
        if (code == TN_OK)
            code = tni_wait(g, op, &sends[slot]);
        for (c = 0; c < n && code == TN_OK; c++)
            post(g, children[c], true, &msgs[slot * (size_t)(n + 1) + 1 + (size_t)c],
                 frame_of(op, f->dtype, f->bytes, size), f->p + at, &sends[slot]);
    }
    for (j = 0; j < TNI_DEPTH && code == TN_OK; j++)
        code = tni_wait(g, op, &sends[j]);
    free(msgs);
    return code;
}

static tn_code run_broadcast(tn_pg *g, tni_op *op, tn_err *err) {
    flat f = {0};
    tn_code code = flat_open(g, &f, op->in, op->nin, g->rank == op->root, err);
    int *children = calloc((size_t)g->size, sizeof(*children)), parent = -1, n;
    bool tree = g->size > FLAT_MAX_RANKS && f.bytes > g->small_max;
    unsigned depth = (unsigned)__builtin_popcount((unsigned)((g->rank - op->root + g->size) % g->size));

    if (code == TN_OK && children == NULL)
        code = tn_fail(err, TN_ENOMEM, "no memory for a broadcast");
    if (code == TN_OK) {
        if (tree) /* those nearer the root know better who is missing: they speak first */
            op->deadline = tn_deadline_after(op->deadline, depth * 100 * TN_MS);
        n = family(g, op->root, tree, &parent, children);
        code = pass_down(g, op, &f, parent, children, n, err);
    }
    if (code == TN_OK && g->rank != op->root)
        flat_store(g, &f);
    free(children);
    flat_close(&f);
    return code;
}

/* All-gather, gather, scatter and all-to-all differ in who sends what to whom. A single view stands for all
 * ranks (all-gather: the same input goes to everyone). */
static tn_code run_moves(tn_pg *g, tni_op *op, tni_lists *l, tn_err *err) {
    bool all = op->kind == TNI_ALLGATHER || op->kind == TNI_ALLTOALL, root = g->rank == op->root;
    bool to_root = op->kind == TNI_GATHER, sends = all || root != to_root, recvs = all || root == to_root;
    flat *in = op->nin > 0 ? flats_open(g, op->in, (int)op->nin, true, err) : NULL;
    flat *out = op->nout > 0 ? flats_open(g, op->out, (int)op->nout, false, err) : NULL;
    tn_dtype dtype = op->nin > 0 ? op->in->dtype : op->out->dtype;
    int pending = 0, r;
    tn_code code = TN_OK;

    if ((in == NULL && op->nin > 0) || (out == NULL && op->nout > 0)) {
        code = err->code;
        goto out;
    }
    for (r = 0; r < g->size; r++) {
        const flat *src = in != NULL ? &in[op->nin == 1 ? 0 : r] : NULL;
        const flat *dst = out != NULL ? &out[op->nout == 1 ? 0 : r] : NULL;

        l->send[r] = src != NULL ? src->p : NULL;
        l->send_bytes[r] = src != NULL ? src->bytes : 0;
        l->recv[r] = dst != NULL ? dst->p : NULL;
        l->recv_bytes[r] = dst != NULL ? dst->bytes : 0;
    }
    if (all || root)
        copy(g, l->recv[g->rank], l->send[g->rank], l->recv_bytes[g->rank]);
    if (all || root) {
        code = exchange(g, op, dtype, sends ? l->send : NULL, l->send_bytes, recvs ? l->recv : NULL,
                        l->recv_bytes, l->msgs);
    } else {
        size_t bytes = sends ? l->send_bytes[op->root] : l->recv_bytes[op->root];

        post(g, op->root, sends, &l->msgs[0], frame_of(op, dtype, bytes, bytes),
             sends ? l->send[op->root] : l->recv[op->root], &pending);
        code = tni_wait(g, op, &pending);
    }
    for (r = 0; out != NULL && r < (int)op->nout && code == TN_OK; r++)
        flat_store(g, &out[r]);
out:
    flats_close(in, (int)op->nin);
    flats_close(out, (int)op->nout);
    return code;
}

/* Barrier and refused calls: an empty message to and from everyone, so each rank sees for itself who has
 * come. */
static tn_code run_presence(tn_pg *g, tni_op *op, tni_lists *l) {
    return tni_exchange(g, op, TN_BOOL, l);
}

tn_code tni_run(tn_pg *g, tni_op *op, tn_err *err) {
    char text[TNI_FAIL_TEXT];
    tni_lists l;
    tn_code code = lists_new(&l, g->size, err);
    bool made = code == TN_OK;

    if (made && g->check) {
        code = tni_check(g, op, &l, err);
        memset(l.send_bytes, 0, (size_t)g->size * sizeof(*l.send_bytes));
        memset(l.recv_bytes, 0, (size_t)g->size * sizeof(*l.recv_bytes));
    }
    if (code == TN_OK) {
        switch (op->kind) {
        case TNI_ALLREDUCE:
        case TNI_REDUCE:
            code = run_reduce(g, op, &l, err);
            break;
        case TNI_REDUCE_SCATTER:
            code = run_reduce_scatter(g, op, &l, err);
            break;
        case TNI_BROADCAST:
            code = run_broadcast(g, op, err);
            break;
        case TNI_ALLGATHER:
        case TNI_GATHER:
        case TNI_SCATTER:
        case TNI_ALLTOALL:
            code = run_moves(g, op, &l, err);
            break;
        case TNI_BARRIER:
        case TNI_REFUSED:
            code = run_presence(g, op, &l);
            break;
        default:
            code = tn_fail(err, TN_EINTERNAL, "an operation of type %d", (int)op->kind);
        }
    }
    if (made)
        lists_free(&l);
    if (code == TN_ENOMEM && !g->failed) { /* found here alone, nothing was posted; the others are told */
        snprintf(text, sizeof(text), "rank %d failed: %.300s", g->rank, err->msg);
        tni_fail(g, g->rank, -1, code, op->seq, text);
    }
    return code;
}

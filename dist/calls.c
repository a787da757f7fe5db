/* The public collectives: what can be refused at once is, the rest is queued for the progress thread.
 *
 * A call whose arguments are refused takes its place in the sequence as an operation of its own
 * (TNI_REFUSED): if all ranks were refused alike the group goes on, else the others fail by name instead of
 * waiting. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dist/internal.h"

#define MAX_LIST ((size_t)1 << 20) /* tensors of one operation */

static tni_op *op_new(tni_type kind, const tn_tensor *in, size_t nin, const tn_tensor *out, size_t nout) {
    tni_op *op = calloc(1, sizeof(*op) + (nin + nout) * sizeof(tn_tensor));

    if (op == NULL)
        return NULL;
    op->kind = kind;
    op->id = tni_next_id();
    op->in = (tn_tensor *)(void *)(op + 1);
    op->out = op->in + nin;
    op->nin = nin;
    op->nout = nout;
    if (nin > 0)
        memcpy(op->in, in, nin * sizeof(*in));
    if (nout > 0)
        memcpy(op->out, out, nout * sizeof(*out));
    return op;
}

static void enqueue(tn_pg *g, tni_op *op) {
    op->seq = ++g->seq;
    if (g->queue_tail != NULL)
        g->queue_tail->next = op;
    else
        g->queue = op;
    g->queue_tail = op;
    pthread_cond_broadcast(&g->wake);
}

static tn_code usable(tn_pg *g, const char *what, tn_err *err) {
    if (g->failed)
        return tni_group_error(g, what, g->seq + 1, 0, err);
    if (g->leaving)
        return tn_fail(err, TN_ECANCELED, "%s: group '%s' is being freed", what, g->name);
    return TN_OK;
}

/* A refusal: `err` is the reason, which stays the caller's; the peers learn that there was one. */
static tn_code refuse(tn_pg *g, const tn_pg_call *call, tn_err *err) {
    tni_op *op = op_new(TNI_REFUSED, NULL, 0, NULL, 0);
    tn_code code = err->code;

    if (op == NULL)
        return code; /* the peers will time out */
    op->timeout_ns = call != NULL && call->timeout_ns > 0 ? call->timeout_ns : g->timeout_ns;
    tni_lock(g);
    if (g->failed || g->leaving || tni_start_thread(g, NULL) != TN_OK)
        free(op);
    else
        enqueue(g, op);
    tni_unlock(g);
    return code;
}

void tn_pg_refuse(tn_pg *g, const tn_pg_call *call) {
    tn_err err = TN_ERR_INIT;

    refuse(g, call, &err);
}

/* Queues the operation. Takes over op. */
static tn_code issue(tn_pg *g, tni_op *op, const tn_pg_call *call, tn_work **work, tn_err *err) {
    tn_code code;

    *work = NULL;
    if (op == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for an operation");
    op->timeout_ns = call != NULL && call->timeout_ns > 0 ? call->timeout_ns : g->timeout_ns;
    op->weight = call != NULL ? call->weight : 0;
    op->fin = tni_finished_new(work);
    if (op->fin == NULL) {
        free(op);
        return tn_fail(err, TN_ENOMEM, "no memory for an operation");
    }
    tni_lock(g);
    code = usable(g, tni_type_name(op->kind), err);
    if (code == TN_OK)
        code = tni_start_thread(g, err);
    if (code == TN_OK)
        enqueue(g, op);
    tni_unlock(g);
    if (code != TN_OK) {
        tn_work_unref(op->fin->work);
        tn_work_unref(*work);
        *work = NULL;
        free(op->fin);
        free(op);
    }
    return code;
}

/* ---- Checks ---- */

static tn_code check_view(const char *what, const tn_tensor *t, tn_err *err) {
    if (t == NULL || !tn_dtype_valid((int)t->dtype) || t->ndim < 0 || t->ndim > TN_MAX_DIMS)
        return tn_fail(err, TN_EINVAL, "%s: a tensor is missing or is not a tensor", what);
    if (t->data == NULL && tn_tensor_numel(t) > 0)
        return tn_fail(err, TN_EINVAL, "%s: a tensor has no memory", what);
    return TN_OK;
}

static tn_code check_list(const char *what, const tn_tensor *t, size_t n, bool one_dtype, tn_err *err) {
    size_t i;
    tn_code code;

    if (t == NULL || n == 0 || n > MAX_LIST)
        return tn_fail(err, TN_EINVAL, "%s: a list of 1 to %zu tensors is needed", what, MAX_LIST);
    for (i = 0; i < n; i++) {
        code = check_view(what, &t[i], err);
        if (code != TN_OK)
            return code;
        if (one_dtype && t[i].dtype != t[0].dtype)
            return tn_fail(err, TN_ESHAPE,
                           "%s: tensor %zu is %s where the first is %s; one operation has one dtype", what, i,
                           tn_dtype_name(t[i].dtype), tn_dtype_name(t[0].dtype));
    }
    return TN_OK;
}

static tn_code check_root(const tn_pg *g, const char *what, int root, tn_err *err) {
    if (root < 0 || root >= g->size)
        return tn_fail(err, TN_EINVAL, "%s: root %d is not a rank of group '%s' (0 to %d)", what, root, g->name,
                       g->size - 1);
    return TN_OK;
}

static tn_code check_op(const char *what, tn_op op, tn_dtype dtype, tn_err *err) {
    tn_err why = TN_ERR_INIT;

    if ((int)op < 0 || (int)op >= TN_OP_COUNT)
        return tn_fail(err, TN_EINVAL, "%s: there is no reduction number %d", what, (int)op);
    if (tn_k_reduce_check(op, dtype, &why) == TN_OK)
        return TN_OK;
    return tn_fail(err, why.code, "%s: %.400s", what, why.msg);
}

/* Two views that hold the same data. */
static tn_code check_same(const char *what, const tn_tensor *a, const tn_tensor *b, tn_err *err) {
    char ta[160], tb[160];

    if (a->dtype == b->dtype && tn_tensor_numel(a) == tn_tensor_numel(b))
        return TN_OK;
    return tn_fail(err, TN_ESHAPE, "%s: this rank's input is %s and its own output %s", what,
                   tn_tensor_describe(a, ta, sizeof(ta)), tn_tensor_describe(b, tb, sizeof(tb)));
}

/* ---- The operations ---- */

tn_code tn_pg_allreduce(tn_pg *g, const tn_tensor *t, size_t n, tn_op op, const tn_pg_call *call,
                        tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    tni_op *o;

    *work = NULL;
    if (check_list("allreduce", t, n, true, e) != TN_OK || check_op("allreduce", op, t->dtype, e) != TN_OK)
        return refuse(g, call, e);
    o = op_new(TNI_ALLREDUCE, t, n, NULL, 0);
    if (o != NULL)
        o->redop = op;
    return issue(g, o, call, work, e);
}

tn_code tn_pg_broadcast(tn_pg *g, const tn_tensor *t, size_t n, int root, const tn_pg_call *call,
                        tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    tni_op *o;

    *work = NULL;
    if (check_list("broadcast", t, n, false, e) != TN_OK || check_root(g, "broadcast", root, e) != TN_OK)
        return refuse(g, call, e);
    o = op_new(TNI_BROADCAST, t, n, NULL, 0);
    if (o != NULL)
        o->root = root;
    return issue(g, o, call, work, e);
}

tn_code tn_pg_reduce(tn_pg *g, const tn_tensor *t, size_t n, int root, tn_op op, const tn_pg_call *call,
                     tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    tni_op *o;

    *work = NULL;
    if (check_list("reduce", t, n, true, e) != TN_OK || check_root(g, "reduce", root, e) != TN_OK ||
        check_op("reduce", op, t->dtype, e) != TN_OK)
        return refuse(g, call, e);
    o = op_new(TNI_REDUCE, t, n, NULL, 0);
    if (o != NULL) {
        o->root = root;
        o->redop = op;
    }
    return issue(g, o, call, work, e);
}

tn_code tn_pg_allgather(tn_pg *g, const tn_tensor *in, const tn_tensor *out, const tn_pg_call *call,
                        tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    size_t n = (size_t)g->size;

    *work = NULL;
    if (check_view("allgather", in, e) != TN_OK || check_list("allgather", out, n, true, e) != TN_OK ||
        check_same("allgather", in, &out[g->rank], e) != TN_OK)
        return refuse(g, call, e);
    return issue(g, op_new(TNI_ALLGATHER, in, 1, out, n), call, work, e);
}

tn_code tn_pg_reduce_scatter(tn_pg *g, const tn_tensor *in, const tn_tensor *out, tn_op op,
                             const tn_pg_call *call, tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    size_t n = (size_t)g->size;
    tni_op *o;

    *work = NULL;
    if (check_list("reduce_scatter", in, n, true, e) != TN_OK ||
        check_view("reduce_scatter", out, e) != TN_OK ||
        check_same("reduce_scatter", &in[g->rank], out, e) != TN_OK ||
        check_op("reduce_scatter", op, out->dtype, e) != TN_OK)
        return refuse(g, call, e);
    o = op_new(TNI_REDUCE_SCATTER, in, n, out, 1);
    if (o != NULL)
        o->redop = op;
    return issue(g, o, call, work, e);
}

tn_code tn_pg_gather(tn_pg *g, const tn_tensor *in, const tn_tensor *out, int root, const tn_pg_call *call,
                     tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    bool here = g->rank == root;
    size_t n = here ? (size_t)g->size : 0;
    tni_op *o;

    *work = NULL;
    if (check_root(g, "gather", root, e) != TN_OK || check_view("gather", in, e) != TN_OK ||
        (here && check_list("gather", out, n, true, e) != TN_OK) ||
        (here && check_same("gather", in, &out[root], e) != TN_OK))
        return refuse(g, call, e);
    o = op_new(TNI_GATHER, in, 1, out, n);
    if (o != NULL)
        o->root = root;
    return issue(g, o, call, work, e);
}

tn_code tn_pg_scatter(tn_pg *g, const tn_tensor *in, const tn_tensor *out, int root, const tn_pg_call *call,
                      tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    bool here = g->rank == root;
    size_t n = here ? (size_t)g->size : 0;
    tni_op *o;

    *work = NULL;
    if (check_root(g, "scatter", root, e) != TN_OK || check_view("scatter", out, e) != TN_OK ||
        (here && check_list("scatter", in, n, true, e) != TN_OK) ||
        (here && check_same("scatter", &in[root], out, e) != TN_OK))
        return refuse(g, call, e);
    o = op_new(TNI_SCATTER, in, n, out, 1);
    if (o != NULL)
        o->root = root;
    return issue(g, o, call, work, e);
}

tn_code tn_pg_alltoall(tn_pg *g, const tn_tensor *in, const tn_tensor *out, const tn_pg_call *call,
                       tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;
    size_t n = (size_t)g->size;

    *work = NULL;
    if (check_list("alltoall", in, n, true, e) != TN_OK || check_list("alltoall", out, n, true, e) != TN_OK ||
        check_same("alltoall", &in[g->rank], &out[g->rank], e) != TN_OK)
        return refuse(g, call, e);
    return issue(g, op_new(TNI_ALLTOALL, in, n, out, n), call, work, e);
}

tn_code tn_pg_barrier(tn_pg *g, const tn_pg_call *call, tn_work **work, tn_err *err) {
    tn_err local, *e = err != NULL ? err : &local;

    return issue(g, op_new(TNI_BARRIER, NULL, 0, NULL, 0), call, work, e);
}

uint64_t tn_pg_sequence(const tn_pg *g) {
    tn_pg *locked = (tn_pg *)(uintptr_t)g; /* the lock is the only thing that changes */
    uint64_t seq;

    pthread_mutex_lock(&locked->lock);
    seq = locked->seq;
    pthread_mutex_unlock(&locked->lock);
    return seq;
}

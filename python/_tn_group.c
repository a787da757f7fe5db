/* Group: the process group of dist/ over a store that is a Python object (torch's Store, or anything with its
 * four methods). */
#include "python/_tn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/dist.h"

typedef struct tni_group {
    PyObject_HEAD
    tn_pg *pg; /* NULL once closed */
    tni_works works;
    unsigned users; /* calls that use pg with the lock released */
    bool closing;
    pid_t pid;
} tni_group;

/* ---- the store ---- */

typedef struct store_ctx {
    PyObject *store;
    /* The first Python error, raised in place of the C one if it is an interrupt. */
    PyObject *type, *value, *trace;
} store_ctx;

static tn_code store_failed(store_ctx *ctx, tn_code code, const char *call, const char *key, tn_err *err) {
    char what[160];

    snprintf(what, sizeof(what), "the store's %s of '%.100s' failed", call, key);
    if (ctx->type == NULL) {
        PyErr_Fetch(&ctx->type, &ctx->value, &ctx->trace);
        Py_XINCREF(ctx->type);
        Py_XINCREF(ctx->value);
        Py_XINCREF(ctx->trace);
        PyErr_Restore(ctx->type, ctx->value, ctx->trace);
    }
    return tni_err_take(err, code, what);
}

static tn_code store_set(void *arg, const char *key, const void *value, size_t n, tn_err *err) {
    PyGILState_STATE gil = PyGILState_Ensure();
    store_ctx *ctx = arg;
    PyObject *done = PyObject_CallMethod(ctx->store, "set", "sy#", key, value, (Py_ssize_t)n);
    tn_code code = done != NULL ? TN_OK : store_failed(ctx, TN_EIO, "set", key, err);

    Py_XDECREF(done);
    PyGILState_Release(gil);
    return code;
}

static PyObject *timedelta_of(int64_t ns) {
    PyObject *datetime = PyImport_ImportModule("datetime"), *delta = NULL, *type;
    /* c10d keeps milliseconds in 64 bits and takes 0 for no limit. */
    double seconds = ns == TN_FOREVER ? 1e9 : (double)ns / 1e9;

    if (seconds < 0.001)
        seconds = 0.001;
    type = datetime != NULL ? PyObject_GetAttrString(datetime, "timedelta") : NULL;
    if (type != NULL)
        delta = PyObject_CallFunction(type, "id", 0, seconds);
    Py_XDECREF(type);
    Py_XDECREF(datetime);
    return delta;
}

static tn_code store_get(void *arg, const char *key, int64_t timeout_ns, uint8_t **value, size_t *n,
                         tn_err *err) {
    PyGILState_STATE gil = PyGILState_Ensure();
    store_ctx *ctx = arg;
    PyObject *delta = timedelta_of(timeout_ns), *done = NULL, *bytes = NULL;
    tn_code code = TN_OK;
    Py_ssize_t size;
    char *data;

    if (delta != NULL)
        done = PyObject_CallMethod(ctx->store, "wait", "[s]O", key, delta);
    if (done == NULL) {
        code = store_failed(ctx, TN_ETIMEDOUT, "wait", key, err);
        goto out;
    }
    bytes = PyObject_CallMethod(ctx->store, "get", "s", key);
    if (bytes == NULL || PyBytes_AsStringAndSize(bytes, &data, &size) < 0) {
        code = store_failed(ctx, TN_EIO, "get", key, err);
        goto out;
    }
    *value = malloc((size_t)size + 1);
    if (*value == NULL) {
        code = tn_fail(err, TN_ENOMEM, "no memory for %zd bytes of the store's '%s'", size, key);
        goto out;
    }
    memcpy(*value, data, (size_t)size);
    *n = (size_t)size;
out:
    Py_XDECREF(delta);
    Py_XDECREF(done);
    Py_XDECREF(bytes);
    PyGILState_Release(gil);
    return code;
}

static tn_code store_add(void *arg, const char *key, int64_t delta, int64_t *now, tn_err *err) {
    PyGILState_STATE gil = PyGILState_Ensure();
    store_ctx *ctx = arg;
    PyObject *sum = PyObject_CallMethod(ctx->store, "add", "sL", key, (long long)delta);
    tn_code code = TN_OK;

    *now = sum != NULL ? PyLong_AsLongLong(sum) : -1;
    if (sum == NULL || (*now == -1 && PyErr_Occurred()))
        code = store_failed(ctx, TN_EIO, "add", key, err);
    Py_XDECREF(sum);
    PyGILState_Release(gil);
    return code;
}

/* For a group of one without a store: it reads what it wrote last, and nobody else comes. */
typedef struct slot {
    char key[192];
    uint8_t value[512];
    size_t n;
} slot;

static tn_code slot_set(void *arg, const char *key, const void *value, size_t n, tn_err *err) {
    slot *s = arg;

    if (strlen(key) >= sizeof(s->key) || n > sizeof(s->value))
        return tn_fail(err, TN_ETOOBIG, "%zu bytes for '%.100s' are too many without a store", n, key);
    memcpy(s->key, key, strlen(key) + 1);
    memcpy(s->value, value, n);
    s->n = n;
    return TN_OK;
}

static tn_code slot_get(void *arg, const char *key, int64_t timeout_ns, uint8_t **value, size_t *n,
                        tn_err *err) {
    const slot *s = arg;

    (void)timeout_ns;
    if (strcmp(key, s->key) != 0)
        return tn_fail(err, TN_ENOTFOUND, "there is no '%.100s' without a store", key);
    *value = malloc(s->n + 1);
    if (*value == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for %zu bytes", s->n);
    memcpy(*value, s->value, s->n);
    *n = s->n;
    return TN_OK;
}

static tn_code slot_add(void *arg, const char *key, int64_t delta, int64_t *now, tn_err *err) {
    (void)arg;
    (void)key;
    (void)err;
    *now = delta;
    return TN_OK;
}

/* ---- life ---- */

static PyObject *group_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"store", "rank", "size", "name", "transport", "host", "timeout",
                            "cert",  "key",  "ca",   "segment", "small_max", "check", NULL};
    tni_state *st = PyType_GetModuleState(type);
    allocfunc alloc = TNI_FN(allocfunc, PyType_GetSlot(type, Py_tp_alloc));
    store_ctx ctx = {NULL, NULL, NULL, NULL};
    slot own = {.n = 0};
    tn_store store = {&ctx, store_set, store_get, store_add, NULL};
    tn_pg_opts opts = {.name = "world", .transport = "tcp"};
    PyObject *timeout_obj = NULL;
    Py_ssize_t segment = 0, small_max = 0;
    tn_err err = TN_ERR_INIT;
    tni_group *self;
    int rank, size, check = 0;
    tn_code code;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oii|$sszOzzznnp:Group", TNI_NAMES(names), &ctx.store, &rank,
                                     &size, &opts.name, &opts.transport, &opts.host, &timeout_obj,
                                     &opts.tls.cert, &opts.tls.key, &opts.tls.ca, &segment, &small_max,
                                     &check) ||
        !tni_seconds(timeout_obj, 1800 * TN_SECOND, &opts.timeout_ns))
        return NULL;
    if (segment < 0 || small_max < 0) {
        PyErr_SetString(PyExc_ValueError, "segment and small_max are numbers of bytes, 0 for the default");
        return NULL;
    }
    if (ctx.store == Py_None && size != 1) {
        PyErr_Format(PyExc_ValueError,
                     "a group of %d ranks needs a store to meet in; None serves a group of one", size);
        return NULL;
    }
    if (ctx.store == Py_None)
        store = (tn_store){&own, slot_set, slot_get, slot_add, NULL};
    opts.segment = (size_t)segment;
    opts.small_max = (size_t)small_max;
    opts.check = check != 0;
    self = (tni_group *)(void *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->pid = getpid();
    Py_BEGIN_ALLOW_THREADS
    code = tn_pg_new(&self->pg, &store, rank, size, &opts, &err);
    Py_END_ALLOW_THREADS
    if (code != TN_OK) {
        self->pg = NULL;
        if (ctx.type != NULL && !PyErr_GivenExceptionMatches(ctx.type, PyExc_Exception)) {
            PyErr_Restore(ctx.type, ctx.value, ctx.trace);
            ctx.type = ctx.value = ctx.trace = NULL;
        } else {
            tni_raise(st, &err);
        }
        Py_DECREF((PyObject *)self);
        self = NULL;
    }
    Py_XDECREF(ctx.type);
    Py_XDECREF(ctx.value);
    Py_XDECREF(ctx.trace);
    return (PyObject *)self;
}

/* The open group, counted as used; leave() when the C call is over. NULL with an error set if it is closed. */
static tn_pg *enter(PyObject *obj) {
    tni_group *self = (tni_group *)(void *)obj;

    if (self->pid != getpid()) {
        PyErr_SetString(PyExc_RuntimeError, "this group belongs to the process that this one was forked from");
        return NULL;
    }
    if (self->pg == NULL || self->closing) {
        tn_err err = TN_ERR_INIT;

        tn_fail(&err, TN_ECANCELED, "the group is closed");
        tni_raise(tni_state_of(obj), &err);
        return NULL;
    }
    self->users++;
    return self->pg;
}

static void leave(PyObject *obj) {
    ((tni_group *)(void *)obj)->users--;
}

static PyObject *group_close(PyObject *obj, PyObject *args) {
    tni_group *self = (tni_group *)(void *)obj;
    PyObject *timeout_obj = NULL;
    int64_t timeout;
    tn_pg *pg;

    if (!PyArg_ParseTuple(args, "|O:close", &timeout_obj) || !tni_seconds(timeout_obj, 0, &timeout))
        return NULL;
    if (self->pid != getpid() || self->pg == NULL || self->closing)
        Py_RETURN_NONE;
    self->closing = true;
    /* Other threads may be inside a call; those are short, since none of them waits for peers. */
    while (self->users > 0) {
        Py_BEGIN_ALLOW_THREADS
        usleep(100);
        Py_END_ALLOW_THREADS
    }
    pg = self->pg;
    self->pg = NULL;
    Py_BEGIN_ALLOW_THREADS
    tn_pg_free(pg, timeout);
    Py_END_ALLOW_THREADS
    tni_works_forget(&self->works);
    Py_RETURN_NONE;
}

static void group_dealloc(PyObject *obj) {
    tni_group *self = (tni_group *)(void *)obj;
    PyTypeObject *type = Py_TYPE(obj);
    freefunc release = TNI_FN(freefunc, PyType_GetSlot(type, Py_tp_free));

    if (self->pg != NULL && self->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS
        tn_pg_free(self->pg, 0);
        Py_END_ALLOW_THREADS
    }
    tni_works_forget(&self->works);
    release(obj);
    Py_DECREF(type);
}

static PyObject *group_abort(PyObject *obj, PyObject *args) {
    const char *why = "aborted by the application";
    tn_pg *pg;

    if (!PyArg_ParseTuple(args, "|s:abort", &why))
        return NULL;
    pg = enter(obj);
    if (pg == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    tn_pg_abort(pg, why);
    Py_END_ALLOW_THREADS
    leave(obj);
    Py_RETURN_NONE;
}

static PyObject *group_shrink(PyObject *obj, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"timeout", "minority", NULL};
    PyTypeObject *type = Py_TYPE(obj);
    allocfunc alloc = TNI_FN(allocfunc, PyType_GetSlot(type, Py_tp_alloc));
    PyObject *timeout = NULL, *ranks = NULL, *made = NULL;
    tn_pg_shrink_opts opts = {0};
    tn_err err = TN_ERR_INIT;
    tn_pg *pg, *next = NULL;
    int minority = 0, *old, i;
    tn_code code;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|Op:shrink", TNI_NAMES(names), &timeout, &minority) ||
        !tni_seconds(timeout, 0, &opts.timeout_ns))
        return NULL;
    opts.minority = minority != 0;
    pg = enter(obj);
    if (pg == NULL)
        return NULL;
    old = calloc((size_t)tn_pg_size(pg), sizeof(*old));
    if (old == NULL) {
        leave(obj);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    code = tn_pg_shrink(pg, &opts, &next, old, &err);
    Py_END_ALLOW_THREADS
    leave(obj);
    if (code != TN_OK) {
        tni_raise(tni_state_of(obj), &err);
        goto out;
    }
    made = alloc(type, 0);
    ranks = made != NULL ? PyList_New(0) : NULL;
    for (i = 0; ranks != NULL && i < tn_pg_size(next); i++) {
        PyObject *number = PyLong_FromLong(old[i]);

        if (number == NULL || PyList_Append(ranks, number) < 0)
            Py_CLEAR(ranks);
        Py_XDECREF(number);
    }
    if (ranks == NULL) {
        Py_CLEAR(made);
        Py_BEGIN_ALLOW_THREADS
        tn_pg_free(next, 0);
        Py_END_ALLOW_THREADS
        goto out;
    }
    ((tni_group *)(void *)made)->pg = next;
    ((tni_group *)(void *)made)->pid = getpid();
out:
    free(old);
    return made != NULL ? Py_BuildValue("NN", made, ranks) : NULL;
}

/* ---- operations ---- */

/* What one call needs: tensors that go in and come out, options, and the work to be. */
typedef struct op_ctx {
    PyObject *self;
    tni_state *st;
    tn_pg *pg;
    tni_tensors a, b;
    tn_pg_call call;
    tni_work *w;
    tn_work *work;
    tn_err err;
    bool alone; /* point to point: nobody else counts on it */
} op_ctx;

static bool op_enter(op_ctx *c, PyObject *self) {
    memset(c, 0, sizeof(*c));
    c->self = self;
    c->st = tni_state_of(self);
    c->pg = enter(self);
    return c->pg != NULL;
}

static bool op_timeout(op_ctx *c, PyObject *obj) {
    if (!tni_seconds(obj, 0, &c->call.timeout_ns))
        return false;
    return true;
}

/* Moves the references to the tensors into the work that will hold them. */
static bool op_prepare(op_ctx *c) {
    PyObject *held =
        PyTuple_Pack(2, c->a.held != NULL ? c->a.held : Py_None, c->b.held != NULL ? c->b.held : Py_None);

    if (held == NULL)
        return false;
    tni_works_prune(&((tni_group *)(void *)c->self)->works);
    c->w = tni_work_make(c->st, held);
    return c->w != NULL;
}

/* The result of the method: the work, or NULL with the error set. */
static PyObject *op_leave(op_ctx *c, bool issued, tn_code code) {
    PyObject *result = NULL;

    if (issued && code == TN_OK) {
        tni_work_begin(c->w, c->work, &((tni_group *)(void *)c->self)->works);
        result = (PyObject *)c->w;
        c->w = NULL;
    } else if (issued) {
        tni_raise(c->st, &c->err);
    } else if (!c->alone) {
        /* Refused here, before the group heard of it: the other ranks' calls must not wait for this one. */
        Py_BEGIN_ALLOW_THREADS
        tn_pg_refuse(c->pg, &c->call);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF((PyObject *)c->w);
    tni_tensors_release(&c->a);
    tni_tensors_release(&c->b);
    leave(c->self);
    return result;
}

/* Between these the lock is released: issuing takes the group's own lock. */
#define ISSUE(call)             \
    do {                        \
        Py_BEGIN_ALLOW_THREADS  \
        code = (call);          \
        Py_END_ALLOW_THREADS    \
        issued = true;          \
    } while (0)

static bool counts(const op_ctx *c, const tni_tensors *ts, const char *what) {
    if (ts->n == (size_t)tn_pg_size(c->pg))
        return true;
    PyErr_Format(PyExc_ValueError, "%s has %zu tensors and the group %d ranks", what, ts->n, tn_pg_size(c->pg));
    return false;
}

static bool one(op_ctx *c, PyObject *obj, const char *what, tni_tensors *out) {
    PyObject *list = PyTuple_Pack(1, obj);
    bool ok = list != NULL && tni_tensors_get(c->st, list, what, out);

    Py_XDECREF(list);
    return ok;
}

static PyObject *group_allreduce(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"tensors", "op", "weight", "timeout", NULL};
    PyObject *tensors, *weight = NULL, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    const char *name;
    op_ctx c;
    tn_op op;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "Os|OO:allreduce", TNI_NAMES(names), &tensors, &name, &weight,
                                    &timeout) &&
        tni_op_get(name, &op) && op_timeout(&c, timeout) && tni_tensors_get(c.st, tensors, "tensors", &c.a)) {
        if (weight != NULL && weight != Py_None)
            c.call.weight = PyFloat_AsDouble(weight);
        if (!PyErr_Occurred() && op_prepare(&c))
            ISSUE(tn_pg_allreduce(c.pg, c.a.t, c.a.n, op, &c.call, &c.work, &c.err));
    }
    return op_leave(&c, issued, code);
}

static PyObject *group_broadcast(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"tensors", "root", "timeout", NULL};
    PyObject *tensors, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    op_ctx c;
    int root;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "Oi|O:broadcast", TNI_NAMES(names), &tensors, &root,
                                    &timeout) &&
        op_timeout(&c, timeout) && tni_tensors_get(c.st, tensors, "tensors", &c.a) && op_prepare(&c))
        ISSUE(tn_pg_broadcast(c.pg, c.a.t, c.a.n, root, &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

static PyObject *group_reduce(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"tensors", "root", "op", "weight", "timeout", NULL};
    PyObject *tensors, *weight = NULL, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    const char *name;
    op_ctx c;
    tn_op op;
    int root;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "Ois|OO:reduce", TNI_NAMES(names), &tensors, &root, &name,
                                    &weight, &timeout) &&
        tni_op_get(name, &op) && op_timeout(&c, timeout) && tni_tensors_get(c.st, tensors, "tensors", &c.a)) {
        if (weight != NULL && weight != Py_None)
            c.call.weight = PyFloat_AsDouble(weight);
        if (!PyErr_Occurred() && op_prepare(&c))
            ISSUE(tn_pg_reduce(c.pg, c.a.t, c.a.n, root, op, &c.call, &c.work, &c.err));
    }
    return op_leave(&c, issued, code);
}

static PyObject *group_allgather(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"outputs", "input", "timeout", NULL};
    PyObject *outputs, *input, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    op_ctx c;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:allgather", TNI_NAMES(names), &outputs, &input,
                                    &timeout) &&
        op_timeout(&c, timeout) && one(&c, input, "input", &c.a) &&
        tni_tensors_get(c.st, outputs, "outputs", &c.b) && counts(&c, &c.b, "outputs") && op_prepare(&c))
        ISSUE(tn_pg_allgather(c.pg, c.a.t, c.b.t, &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

static PyObject *group_reduce_scatter(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"output", "inputs", "op", "weight", "timeout", NULL};
    PyObject *output, *inputs, *weight = NULL, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    const char *name;
    op_ctx c;
    tn_op op;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "OOs|OO:reduce_scatter", TNI_NAMES(names), &output, &inputs,
                                    &name, &weight, &timeout) &&
        tni_op_get(name, &op) && op_timeout(&c, timeout) && tni_tensors_get(c.st, inputs, "inputs", &c.a) &&
        counts(&c, &c.a, "inputs") && one(&c, output, "output", &c.b)) {
        if (weight != NULL && weight != Py_None)
            c.call.weight = PyFloat_AsDouble(weight);
        if (!PyErr_Occurred() && op_prepare(&c))
            ISSUE(tn_pg_reduce_scatter(c.pg, c.a.t, c.b.t, op, &c.call, &c.work, &c.err));
    }
    return op_leave(&c, issued, code);
}

static PyObject *group_gather(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"outputs", "input", "root", "timeout", NULL};
    PyObject *outputs, *input, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    op_ctx c;
    int root;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "OOi|O:gather", TNI_NAMES(names), &outputs, &input, &root,
                                    &timeout) &&
        op_timeout(&c, timeout) && one(&c, input, "input", &c.a) &&
        (outputs == Py_None ||
         (tni_tensors_get(c.st, outputs, "outputs", &c.b) && counts(&c, &c.b, "outputs"))) &&
        op_prepare(&c))
        ISSUE(tn_pg_gather(c.pg, c.a.t, c.b.t, root, &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

static PyObject *group_scatter(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"output", "inputs", "root", "timeout", NULL};
    PyObject *output, *inputs, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    op_ctx c;
    int root;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "OOi|O:scatter", TNI_NAMES(names), &output, &inputs, &root,
                                    &timeout) &&
        op_timeout(&c, timeout) &&
        (inputs == Py_None || (tni_tensors_get(c.st, inputs, "inputs", &c.a) && counts(&c, &c.a, "inputs"))) &&
        one(&c, output, "output", &c.b) && op_prepare(&c))
        ISSUE(tn_pg_scatter(c.pg, c.a.t, c.b.t, root, &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

static PyObject *group_alltoall(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"outputs", "inputs", "timeout", NULL};
    PyObject *outputs, *inputs, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    op_ctx c;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:alltoall", TNI_NAMES(names), &outputs, &inputs,
                                    &timeout) &&
        op_timeout(&c, timeout) && tni_tensors_get(c.st, inputs, "inputs", &c.a) &&
        counts(&c, &c.a, "inputs") && tni_tensors_get(c.st, outputs, "outputs", &c.b) &&
        counts(&c, &c.b, "outputs") && op_prepare(&c))
        ISSUE(tn_pg_alltoall(c.pg, c.a.t, c.b.t, &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

static PyObject *group_barrier(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    op_ctx c;

    if (!op_enter(&c, self))
        return NULL;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "|O:barrier", TNI_NAMES(names), &timeout) &&
        op_timeout(&c, timeout) && op_prepare(&c))
        ISSUE(tn_pg_barrier(c.pg, &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

static PyObject *group_send(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"tensor", "dst", "tag", "timeout", NULL};
    PyObject *tensor, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    unsigned tag = 0;
    op_ctx c;
    int dst;

    if (!op_enter(&c, self))
        return NULL;
    c.alone = true;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "Oi|IO:send", TNI_NAMES(names), &tensor, &dst, &tag,
                                    &timeout) &&
        op_timeout(&c, timeout) && one(&c, tensor, "tensor", &c.a) && op_prepare(&c))
        ISSUE(tn_pg_send(c.pg, c.a.t, dst, tag, &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

static PyObject *group_recv(PyObject *self, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"tensor", "src", "tag", "timeout", NULL};
    PyObject *tensor, *timeout = NULL;
    tn_code code = TN_OK;
    bool issued = false;
    unsigned tag = 0;
    op_ctx c;
    int src;

    if (!op_enter(&c, self))
        return NULL;
    c.alone = true;
    if (PyArg_ParseTupleAndKeywords(args, kwargs, "Oi|IO:recv", TNI_NAMES(names), &tensor, &src, &tag,
                                    &timeout) &&
        op_timeout(&c, timeout) && one(&c, tensor, "tensor", &c.b) && op_prepare(&c))
        ISSUE(tn_pg_recv(c.pg, c.b.t, src, tag, tni_work_source_slot(c.w), &c.call, &c.work, &c.err));
    return op_leave(&c, issued, code);
}

/* For a caller that refuses a collective by itself: the other ranks' calls fail by name. */
static PyObject *group_refuse(PyObject *self, PyObject *unused) {
    op_ctx c;

    (void)unused;
    if (!op_enter(&c, self))
        return NULL;
    op_leave(&c, false, TN_OK);
    Py_RETURN_NONE;
}

/* ---- attributes ---- */

static PyObject *number(PyObject *self, uint64_t (*get)(const tn_pg *)) {
    tn_pg *pg = enter(self);
    uint64_t n;

    if (pg == NULL)
        return NULL;
    n = get(pg);
    leave(self);
    return PyLong_FromUnsignedLongLong(n);
}

static uint64_t rank_of(const tn_pg *g) {
    return (uint64_t)tn_pg_rank(g);
}

static uint64_t size_of(const tn_pg *g) {
    return (uint64_t)tn_pg_size(g);
}

static PyObject *group_rank(PyObject *self, void *unused) {
    (void)unused;
    return number(self, rank_of);
}

static PyObject *group_size(PyObject *self, void *unused) {
    (void)unused;
    return number(self, size_of);
}

static PyObject *group_sequence(PyObject *self, void *unused) {
    (void)unused;
    return number(self, tn_pg_sequence);
}

#define METHOD(name, doc) \
    {#name, (PyCFunction)(void (*)(void))group_##name, METH_VARARGS | METH_KEYWORDS, doc}

static PyMethodDef group_methods[] = {
    METHOD(allreduce, "allreduce(tensors, op, weight=None, timeout=None) -> Work"),
    METHOD(broadcast, "broadcast(tensors, root, timeout=None) -> Work"),
    METHOD(reduce, "reduce(tensors, root, op, weight=None, timeout=None) -> Work"),
    METHOD(allgather, "allgather(outputs, input, timeout=None) -> Work"),
    METHOD(reduce_scatter, "reduce_scatter(output, inputs, op, weight=None, timeout=None) -> Work"),
    METHOD(gather, "gather(outputs or None, input, root, timeout=None) -> Work"),
    METHOD(scatter, "scatter(output, inputs or None, root, timeout=None) -> Work"),
    METHOD(alltoall, "alltoall(outputs, inputs, timeout=None) -> Work"),
    METHOD(barrier, "barrier(timeout=None) -> Work"),
    METHOD(send, "send(tensor, dst, tag=0, timeout=None) -> Work"),
    METHOD(recv, "recv(tensor, src, tag=0, timeout=None) -> Work; src -1: any"),
    METHOD(shrink, "shrink(timeout=30, minority=False) -> (Group of those who are left, their ranks here)"),
    {"refuse", group_refuse, METH_NOARGS,
     "refuse(): takes the place of a collective that the caller refuses; the other ranks' calls fail by name"},
    {"abort", group_abort, METH_VARARGS,
     "abort(reason): fails everything pending and to come, and tells the peers why"},
    {"close", group_close, METH_VARARGS,
     "close(timeout=0): lets issued operations finish for that long, then frees; never hangs"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef group_getset[] = {
    {"rank", group_rank, NULL, "this rank", NULL},
    {"size", group_size, NULL, "number of ranks", NULL},
    {"sequence", group_sequence, NULL, "sequence number of the last collective issued", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot group_slots[] = {
    {Py_tp_new, TNI_SLOT(group_new)},
    {Py_tp_dealloc, TNI_SLOT(group_dealloc)},
    {Py_tp_methods, group_methods},
    {Py_tp_getset, group_getset},
    {Py_tp_doc,
     TNI_SLOT("Group(store, rank, size, *, name, transport, host, timeout, cert, key, ca, segment, "
              "small_max, check)\n\n"
              "Meets the other ranks in the store; blocks until all are there, at most the time-out.")},
    {0, NULL},
};

PyType_Spec tni_group_spec = {
    .name = "torchnative._tn.Group",
    .basicsize = (int)sizeof(tni_group),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = group_slots,
};

/* Work: an operation under way as Python sees it, and how its end gets back to Python.
 *
 * Two things must hold while C has a tensor's memory: somebody has a reference to the tensor, and nobody needs the interpreter lock to let C
 * finish. So each group keeps a ring of its unfinished works (tni_works), each with a reference that holds its tensors; the ring is pruned
 * under the lock, when the next operation is issued or a wait returns.
 *
 * Callbacks never run on the thread that makes progress: its completion handler only moves a node to a queue (tni_queue), without the lock.
 * Threads of torchnative._completion take nodes from there and run the callables. The queue is counted, since handlers may outlive the module. */
#include "python/_tn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/work.h"

struct tni_work {
    PyObject_HEAD
    tn_work *work;
    PyObject *held;         /* lent to C; NULL once done and seen to be */
    tni_works *in;          /* the ring it is in, or NULL */
    tni_work *next, *prev;
    bool called;            /* on_done was registered */
    int source;             /* written by the group until the work is done */
    pid_t pid;
};

/* ---- finished works that wait for a thread ---- */

typedef struct node {
    struct node *next;
    tni_queue *queue;
    PyObject *work, *callable; /* references, given up by the thread that takes the node */
} node;

struct tni_queue {
    atomic_uint refs;
    pthread_mutex_t lock; /* guards the rest; a leaf */
    pthread_cond_t filled;
    node *first, **last;
    unsigned idle; /* threads in completion_next */
    pid_t pid;
};

tni_queue *tni_queue_new(void) {
    tni_queue *q = calloc(1, sizeof(*q));

    if (q == NULL)
        return NULL;
    if (pthread_mutex_init(&q->lock, NULL) != 0) {
        free(q);
        return NULL;
    }
    tn_cond_init(&q->filled);
    atomic_init(&q->refs, 1);
    q->last = &q->first;
    q->pid = getpid();
    return q;
}

void tni_queue_unref(tni_queue *q) {
    if (atomic_fetch_sub_explicit(&q->refs, 1, memory_order_acq_rel) != 1)
        return;
    /* A forked child may find the lock taken and threads waiting that it does not have. */
    if (q->pid == getpid()) {
        pthread_cond_destroy(&q->filled);
        pthread_mutex_destroy(&q->lock);
    }
    free(q);
}

/* The queue of this process. A forked child starts with an empty one: the parent's may be locked, by a thread that is not here. */
static tni_queue *queue_here(tni_state *st) {
    tni_queue *fresh;

    if (st->queue->pid == getpid())
        return st->queue;
    fresh = tni_queue_new();
    if (fresh == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    tni_queue_unref(st->queue);
    st->queue = fresh;
    return fresh;
}

/* The completion handler: on the progress thread, or on a Python thread when the work was already done. */
static void work_finished(void *arg, tn_work *w) {
    node *n = arg;
    tni_queue *q = n->queue;

    (void)w;
    pthread_mutex_lock(&q->lock);
    n->next = NULL;
    *q->last = n;
    q->last = &n->next;
    pthread_cond_signal(&q->filled);
    pthread_mutex_unlock(&q->lock);
}

static node *queue_take(tni_queue *q, int64_t timeout_ns, unsigned *idle) {
    int64_t deadline = tn_deadline_after(tn_now(), timeout_ns);
    tn_code code = TN_OK;
    node *n;

    pthread_mutex_lock(&q->lock);
    q->idle++;
    while (q->first == NULL && code == TN_OK)
        code = tn_cond_wait_until(&q->filled, &q->lock, deadline);
    n = q->first;
    if (n != NULL) {
        q->first = n->next;
        if (q->first == NULL)
            q->last = &q->first;
    }
    *idle = --q->idle;
    pthread_mutex_unlock(&q->lock);
    return n;
}

PyObject *tni_completion_next(PyObject *module, PyObject *arg) {
    tni_queue *q = queue_here(PyModule_GetState(module));
    PyObject *result;
    int64_t timeout;
    unsigned idle;
    node *n;

    if (q == NULL || !tni_seconds(arg, TN_FOREVER, &timeout))
        return NULL;
    atomic_fetch_add_explicit(&q->refs, 1, memory_order_relaxed);
    Py_BEGIN_ALLOW_THREADS
    n = queue_take(q, timeout, &idle);
    Py_END_ALLOW_THREADS
    tni_queue_unref(q);
    if (n == NULL)
        Py_RETURN_NONE;
    result = Py_BuildValue("(NNI)", n->callable, n->work, idle);
    tni_queue_unref(n->queue);
    free(n);
    return result;
}

/* ---- the ring of works under way ---- */

static void ring_add(tni_works *in, tni_work *w) {
    Py_INCREF((PyObject *)w);
    w->in = in;
    if (in->head == NULL) {
        w->next = w->prev = w;
        in->head = w;
    } else {
        w->next = in->head;
        w->prev = in->head->prev;
        w->prev->next = w;
        w->next->prev = w;
    }
}

/* Out of the ring, and what was lent is let go. The caller has a reference of its own. */
static void settle(tni_work *w) {
    tni_works *in = w->in;

    if (in != NULL) {
        if (w->next == w)
            in->head = NULL;
        else if (in->head == w)
            in->head = w->next;
        w->next->prev = w->prev;
        w->prev->next = w->next;
        w->in = NULL;
        w->next = w->prev = NULL;
    }
    Py_CLEAR(w->held);
    if (in != NULL)
        Py_DECREF((PyObject *)w);
}

void tni_works_prune(tni_works *in) {
    /* A few each time, turning the ring: every work is looked at again and again, and a receive that never ends holds up nobody. */
    for (int i = 0; i < 4 && in->head != NULL; i++) {
        tni_work *w = in->head;

        if (tn_work_done(w->work)) {
            Py_INCREF((PyObject *)w);
            settle(w);
            Py_DECREF((PyObject *)w);
        } else {
            in->head = w->next;
        }
    }
}

void tni_works_forget(tni_works *in) {
    while (in->head != NULL) {
        tni_work *w = in->head;

        Py_INCREF((PyObject *)w);
        settle(w);
        Py_DECREF((PyObject *)w);
    }
}

tni_work *tni_work_make(tni_state *st, PyObject *held) {
    allocfunc alloc = TNI_FN(allocfunc, PyType_GetSlot(st->work_type, Py_tp_alloc));
    tni_work *w = (tni_work *)(void *)alloc(st->work_type, 0);

    if (w == NULL) {
        Py_XDECREF(held);
        return NULL;
    }
    w->held = held;
    w->source = -1;
    w->pid = getpid();
    return w;
}

int *tni_work_source_slot(tni_work *w) {
    return &w->source;
}

void tni_work_begin(tni_work *w, tn_work *work, tni_works *in) {
    w->work = work;
    ring_add(in, w);
}

/* ---- methods ---- */

static tni_work *work_of(PyObject *self) {
    tni_work *w = (tni_work *)(void *)self;

    if (w->pid == getpid())
        return w;
    PyErr_SetString(PyExc_RuntimeError, "this work belongs to the process that this one was forked from");
    return NULL;
}

static PyObject *work_wait(PyObject *self, PyObject *args) {
    tni_work *w = work_of(self);
    PyObject *timeout_obj = NULL;
    tn_err err = TN_ERR_INIT;
    int64_t timeout, deadline, start, left;
    tn_code code;

    if (w == NULL || !PyArg_ParseTuple(args, "|O:wait", &timeout_obj) || !tni_seconds(timeout_obj, TN_FOREVER, &timeout))
        return NULL;
    start = tn_now();
    deadline = tn_deadline_after(start, timeout);
    for (;;) {
        if (tn_work_done(w->work)) {
            code = tn_work_wait(w->work, 0, &err);
            break;
        }
        left = deadline - tn_now();
        if (deadline != TN_FOREVER && left <= 0) {
            tn_fail(&err, TN_ETIMEDOUT, "the operation was not done after %.3f s", (double)(tn_now() - start) / 1e9);
            return tni_raise(tni_state_of(self), &err);
        }
        /* In slices, so that Ctrl-C is seen by a thread that waits. */
        Py_BEGIN_ALLOW_THREADS
        tn_work_wait(w->work, left < 100 * TN_MS ? left : 100 * TN_MS, NULL);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            return NULL;
    }
    Py_INCREF(self);
    settle(w);
    Py_DECREF(self);
    if (code != TN_OK)
        return tni_raise(tni_state_of(self), &err);
    Py_RETURN_NONE;
}

static PyObject *work_done(PyObject *self, PyObject *unused) {
    tni_work *w = work_of(self);

    (void)unused;
    return w != NULL ? PyBool_FromLong(tn_work_done(w->work)) : NULL;
}

static PyObject *work_error(PyObject *self, PyObject *unused) {
    tni_work *w = work_of(self);
    tn_err err = TN_ERR_INIT;

    (void)unused;
    if (w == NULL)
        return NULL;
    if (!tn_work_done(w->work) || tn_work_wait(w->work, 0, &err) == TN_OK)
        Py_RETURN_NONE;
    return tni_exception(tni_state_of(self), &err);
}

static PyObject *work_source(PyObject *self, PyObject *unused) {
    tni_work *w = work_of(self);

    (void)unused;
    /* Before the end the group may be writing it. */
    return w != NULL ? PyLong_FromLong(tn_work_done(w->work) ? w->source : -1) : NULL;
}

static PyObject *work_abort(PyObject *self, PyObject *unused) {
    tni_work *w = work_of(self);

    (void)unused;
    if (w == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    tn_work_abort(w->work, TN_ECANCELED);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *work_on_done(PyObject *self, PyObject *callable) {
    tni_work *w = work_of(self);
    PyObject *pool, *started;
    tni_queue *q;
    node *n;

    if (w == NULL)
        return NULL;
    if (!PyCallable_Check(callable)) {
        PyErr_SetString(PyExc_TypeError, "on_done takes a callable of one argument, the work");
        return NULL;
    }
    if (w->called) {
        PyErr_SetString(PyExc_RuntimeError, "on_done was called before; a work has one callback");
        return NULL;
    }
    pool = PyImport_ImportModule("torchnative._completion");
    started = pool != NULL ? PyObject_CallMethod(pool, "start", NULL) : NULL;
    Py_XDECREF(pool);
    if (started == NULL)
        return NULL;
    Py_DECREF(started);
    q = queue_here(tni_state_of(self));
    if (q == NULL)
        return NULL;
    n = calloc(1, sizeof(*n));
    if (n == NULL)
        return PyErr_NoMemory();
    w->called = true;
    n->queue = q;
    atomic_fetch_add_explicit(&n->queue->refs, 1, memory_order_relaxed);
    Py_INCREF(self);
    Py_INCREF(callable);
    n->work = self;
    n->callable = callable;
    tn_work_on_done(w->work, work_finished, n);
    Py_RETURN_NONE;
}

static void work_dealloc(PyObject *self) {
    tni_work *w = (tni_work *)(void *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = TNI_FN(freefunc, PyType_GetSlot(type, Py_tp_free));

    /* In no ring, so it is done or never began. */
    Py_CLEAR(w->held);
    if (w->pid == getpid())
        tn_work_unref(w->work);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef work_methods[] = {
    {"wait", work_wait, METH_VARARGS, "wait(timeout=None): until it is done, at most that many seconds; raises its error."},
    {"done", work_done, METH_NOARGS, "done() -> bool"},
    {"error", work_error, METH_NOARGS, "error() -> the exception it ended with, or None (also while it runs)"},
    {"source", work_source, METH_NOARGS, "source() -> the rank a finished receive got its data from, else -1"},
    {"abort", work_abort, METH_NOARGS, "abort(): asks it to stop; never blocks"},
    {"on_done", work_on_done, METH_O, "on_done(callable): calls it with the work once it is done, on a completion thread"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot work_slots[] = {
    {Py_tp_dealloc, TNI_SLOT(work_dealloc)},
    {Py_tp_methods, work_methods},
    {Py_tp_doc, TNI_SLOT("An operation under way. Made by Group.")},
    {0, NULL},
};

PyType_Spec tni_work_spec = {
    .name = "torchnative._tn.Work",
    .basicsize = (int)sizeof(tni_work),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = work_slots,
};

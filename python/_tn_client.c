/* Client: the federated client library for Python. Its calls block; here they do so without the interpreter lock and end on Ctrl-C.
 *
 * next() waits in slices and looks for signals between them, so that an interrupted client can still say good-bye. The other calls may be
 * in the middle of a message: they run on a thread of their own while the calling one looks for signals, and an interrupt cancels the client. */
#include "python/_tn.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fed/net/net.h"

#define SLICE (100 * TN_MS) /* how long a signal may go unseen */

typedef struct tni_client {
    PyObject_HEAD
    tn_client *c;      /* NULL once closed */
    PyObject *notice;  /* a callable, or NULL */
    tn_msg_task task;  /* the last that next() gave */
    bool joined, has_task;
    bool busy;         /* a call is under way */
    pid_t pid;
} tni_client;

static void on_notice(void *arg, const char *text) {
    PyGILState_STATE gil = PyGILState_Ensure();
    tni_client *self = arg;
    PyObject *msg = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *done = msg != NULL ? PyObject_CallFunctionObjArgs(self->notice, msg, NULL) : NULL;

    if (done == NULL)
        PyErr_WriteUnraisable(self->notice);
    Py_XDECREF(done);
    Py_XDECREF(msg);
    PyGILState_Release(gil);
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"url",       "cert",     "key",             "ca",     "server_name", "identity", "server_key",
                            "client_id", "insecure", "connect_timeout", "notice", NULL};
    tni_state *st = PyType_GetModuleState(type);
    allocfunc alloc = TNI_FN(allocfunc, PyType_GetSlot(type, Py_tp_alloc));
    PyObject *timeout_obj = NULL, *notice = NULL;
    tn_client_cfg cfg = {0};
    tn_err err = TN_ERR_INIT;
    tni_client *self;
    int insecure = 0;
    tn_code code;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|$zzzzzzzpOO:Client", TNI_NAMES(names), &cfg.url, &cfg.tls.cert, &cfg.tls.key, &cfg.tls.ca,
                                     &cfg.tls.server_name, &cfg.identity, &cfg.server_key, &cfg.client_id, &insecure, &timeout_obj,
                                     &notice) ||
        !tni_seconds(timeout_obj, 60 * TN_SECOND, &cfg.connect_timeout_ns))
        return NULL;
    if (notice != NULL && notice != Py_None && !PyCallable_Check(notice)) {
        PyErr_SetString(PyExc_TypeError, "notice must be a callable that takes a string");
        return NULL;
    }
    self = (tni_client *)(void *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->pid = getpid();
    cfg.insecure = insecure != 0;
    if (notice != NULL && notice != Py_None) {
        Py_INCREF(notice);
        self->notice = notice;
        cfg.notice = on_notice;
        cfg.arg = self;
    }
    /* The configuration's strings are borrowed from the arguments; reading keys and certificates touches the disk. */
    Py_BEGIN_ALLOW_THREADS
    code = tn_client_new(&self->c, &cfg, &err);
    Py_END_ALLOW_THREADS
    if (code != TN_OK) {
        self->c = NULL;
        tni_raise(st, &err);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static int client_traverse(PyObject *obj, visitproc visit, void *arg) {
    Py_VISIT(((tni_client *)(void *)obj)->notice);
    Py_VISIT(Py_TYPE(obj));
    return 0;
}

static int client_clear(PyObject *obj) {
    /* The callback may be called for as long as there is a client. */
    if (((tni_client *)(void *)obj)->c == NULL)
        Py_CLEAR(((tni_client *)(void *)obj)->notice);
    return 0;
}

static void client_dealloc(PyObject *obj) {
    tni_client *self = (tni_client *)(void *)obj;
    PyTypeObject *type = Py_TYPE(obj);
    freefunc release = TNI_FN(freefunc, PyType_GetSlot(type, Py_tp_free));

    PyObject_GC_UnTrack(obj);
    if (self->c != NULL && self->pid == getpid()) {
        Py_BEGIN_ALLOW_THREADS
        tn_client_free(self->c);
        Py_END_ALLOW_THREADS
    }
    self->c = NULL;
    Py_CLEAR(self->notice);
    release(obj);
    Py_DECREF(type);
}

/* The client for one call; done() when it is over. NULL with an error set when it cannot serve one now. */
static tni_client *begin(PyObject *obj) {
    tni_client *self = (tni_client *)(void *)obj;

    if (self->pid != getpid())
        PyErr_SetString(PyExc_RuntimeError, "this client belongs to the process that this one was forked from");
    else if (self->c == NULL)
        PyErr_SetString(PyExc_ValueError, "the client is closed");
    else if (self->busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread is in a call of this client; only cancel() may be called meanwhile");
    else {
        self->busy = true;
        return self;
    }
    return NULL;
}

static bool has_joined(const tni_client *self) {
    if (!self->joined)
        PyErr_SetString(PyExc_ValueError, "the client has not joined: call join() first");
    return self->joined;
}

static void end(tni_client *self) {
    self->busy = false;
}

/* ---- calls that an interrupt cancels ---- */

typedef struct job {
    tn_code (*run)(struct job *j);
    tn_client *c;
    const tn_msg_task *task;
    const tn_layout *layout;
    void *to;
    const void *from;
    const tn_report *report;
    tn_err err;
    tn_code code;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool finished;
} job;

static void *job_thread(void *arg) {
    job *j = arg;

    j->code = j->run(j);
    pthread_mutex_lock(&j->lock);
    j->finished = true;
    pthread_cond_signal(&j->over);
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static bool job_wait(job *j, int64_t ns) {
    int64_t deadline = tn_deadline_after(tn_now(), ns);
    tn_code code = TN_OK;
    bool finished;

    pthread_mutex_lock(&j->lock);
    while (!j->finished && code == TN_OK)
        code = tn_cond_wait_until(&j->over, &j->lock, deadline);
    finished = j->finished;
    pthread_mutex_unlock(&j->lock);
    return finished;
}

/* Runs it to its end. False with an error set: the job's, or the one a signal's handler raised (then the client is cancelled). */
static bool job_run(tni_state *st, job *j) {
    bool interrupted = false, finished = false;
    pthread_t thread;
    int failed;

    if (pthread_mutex_init(&j->lock, NULL) != 0) {
        PyErr_NoMemory();
        return false;
    }
    tn_cond_init(&j->over);
    failed = pthread_create(&thread, NULL, job_thread, j);
    if (failed == 0) {
        while (!finished) {
            Py_BEGIN_ALLOW_THREADS
            finished = job_wait(j, SLICE);
            Py_END_ALLOW_THREADS
            if (!finished && !interrupted && PyErr_CheckSignals() < 0) {
                interrupted = true;
                tn_client_cancel(j->c);
            }
        }
        Py_BEGIN_ALLOW_THREADS
        pthread_join(thread, NULL);
        Py_END_ALLOW_THREADS
    } else {
        tn_fail_sys(&j->err, TN_ENOMEM, failed, "no thread for the client's call");
        j->code = TN_ENOMEM;
    }
    pthread_cond_destroy(&j->over);
    pthread_mutex_destroy(&j->lock);
    if (!interrupted && j->code != TN_OK)
        tni_raise(st, &j->err);
    return !interrupted && j->code == TN_OK;
}

static tn_code run_join(job *j) {
    return tn_client_join(j->c, j->layout, &j->err);
}

static tn_code run_model(job *j) {
    return tn_client_model(j->c, j->task, j->to, &j->err);
}

static tn_code run_submit(job *j) {
    return tn_client_submit(j->c, j->task, j->from, j->report, &j->err);
}

static PyObject *client_join(PyObject *obj, PyObject *args) {
    tni_state *st = tni_state_of(obj);
    PyObject *layout = Py_None, *result = NULL;
    const tn_msg_welcome *w;
    job j = {.run = run_join};
    tni_client *self;

    if (!PyArg_ParseTuple(args, "|O:join", &layout))
        return NULL;
    if (layout != Py_None && Py_TYPE(layout) != st->layout_type) {
        PyErr_SetString(PyExc_TypeError, "join takes a Layout, or None for the server's");
        return NULL;
    }
    self = begin(obj);
    if (self == NULL)
        return NULL;
    j.c = self->c;
    j.layout = layout != Py_None ? &((tni_layout *)(void *)layout)->l : NULL;
    if (job_run(st, &j)) {
        self->joined = true;
        w = tn_client_welcome(self->c);
        result = Py_BuildValue("{s:s,s:N,s:K,s:s}", "client_id", w->id, "authenticated", PyBool_FromLong(w->authenticated), "rounds",
                               (unsigned long long)w->rounds, "aggregator", w->aggregator);
    }
    end(self);
    return result;
}

static PyObject *task_dict(const tn_msg_task *t) {
    static const char *const kinds[] = {"train", "done", "failed"};
    PyObject *params = PyDict_New(), *result = NULL, *text;

    for (size_t i = 0; params != NULL && i < t->nparams; i++) {
        PyObject *value = PyFloat_FromDouble(t->param[i].value);

        if (value == NULL || PyDict_SetItemString(params, t->param[i].name, value) < 0)
            Py_CLEAR(params);
        Py_XDECREF(value);
    }
    text = PyUnicode_DecodeUTF8(t->text, (Py_ssize_t)strlen(t->text), "replace");
    if (params != NULL && text != NULL)
        result = Py_BuildValue("{s:s,s:K,s:I,s:d,s:I,s:O,s:O}", "kind", kinds[t->kind], "round", (unsigned long long)t->round, "attempt",
                               (unsigned)t->attempt, "deadline", t->deadline_seconds, "cohort", (unsigned)t->cohort, "text", text,
                               "params", params);
    Py_XDECREF(params);
    Py_XDECREF(text);
    return result;
}

static PyObject *client_next(PyObject *obj, PyObject *args) {
    tni_state *st = tni_state_of(obj);
    PyObject *timeout_obj = NULL, *result = NULL;
    int64_t timeout, deadline, left;
    tn_err err = TN_ERR_INIT;
    tn_msg_task task;
    tni_client *self;
    tn_code code;

    if (!PyArg_ParseTuple(args, "|O:next", &timeout_obj) || !tni_seconds(timeout_obj, TN_FOREVER, &timeout))
        return NULL;
    self = begin(obj);
    if (self == NULL)
        return NULL;
    if (!has_joined(self))
        goto out;
    deadline = tn_deadline_after(tn_now(), timeout);
    for (;;) {
        left = deadline != TN_FOREVER ? deadline - tn_now() : TN_FOREVER;
        if (left < 0)
            left = 0;
        Py_BEGIN_ALLOW_THREADS
        code = tn_client_next(self->c, &task, left < SLICE ? left : SLICE, &err);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() < 0)
            goto out;
        if (code != TN_ETIMEDOUT)
            break;
        if (left <= SLICE && deadline != TN_FOREVER && deadline <= tn_now()) {
            result = Py_None;
            Py_INCREF(result);
            goto out;
        }
    }
    if (code != TN_OK) {
        tni_raise(st, &err);
        goto out;
    }
    self->task = task;
    self->has_task = true;
    result = task_dict(&task);
out:
    end(self);
    return result;
}

static bool has_task(const tni_client *self) {
    if (has_joined(self) && !self->has_task)
        PyErr_SetString(PyExc_ValueError, "there is no task: call next() first");
    return self->joined && self->has_task;
}

static PyObject *client_model(PyObject *obj, PyObject *block_obj) {
    tni_state *st = tni_state_of(obj);
    job j = {.run = run_model};
    PyObject *result = NULL;
    tni_client *self = begin(obj);
    tni_block block;

    if (self == NULL)
        return NULL;
    if (has_task(self) && tni_block_get(st, block_obj, "the block", tn_client_layout(self->c)->nbytes, true, &block)) {
        j.c = self->c;
        j.task = &self->task;
        j.to = block.p;
        if (job_run(st, &j)) {
            result = Py_None;
            Py_INCREF(result);
        }
        tni_block_release(&block);
    }
    end(self);
    return result;
}

/* The dict's finite and other numbers as they are: the server drops and counts NaN. */
static bool metrics_of(PyObject *dict, tn_metric *metric, size_t *n) {
    PyObject *key, *value;
    Py_ssize_t at = 0;

    *n = 0;
    if (dict == Py_None)
        return true;
    if (!PyDict_Check(dict) || PyDict_Size(dict) > TN_METRICS_MAX) {
        PyErr_Format(PyExc_ValueError, "metrics is a dict of at most %d names and numbers, or None", TN_METRICS_MAX);
        return false;
    }
    while (PyDict_Next(dict, &at, &key, &value)) {
        const char *name = PyUnicode_Check(key) ? PyUnicode_AsUTF8AndSize(key, NULL) : NULL;

        if (name == NULL || strlen(name) >= sizeof(metric->name)) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "a metric's name is a string of fewer than %zu bytes, not %R", sizeof(metric->name), key);
            return false;
        }
        memcpy(metric[*n].name, name, strlen(name) + 1);
        metric[*n].value = PyFloat_AsDouble(value);
        if (metric[*n].value == -1.0 && PyErr_Occurred())
            return false;
        (*n)++;
    }
    return true;
}

static PyObject *client_submit(PyObject *obj, PyObject *args) {
    tni_state *st = tni_state_of(obj);
    PyObject *block_obj, *metrics_obj = Py_None, *count, *metrics, *result = NULL;
    tn_metric metric[TN_METRICS_MAX];
    tn_report report = {.metric = metric};
    job j = {.run = run_submit, .report = &report};
    tni_client *self;
    tni_block block;

    if (!PyArg_ParseTuple(args, "OO!|O:submit", &block_obj, &PyLong_Type, &count, &metrics_obj))
        return NULL;
    report.examples = PyLong_AsUnsignedLongLong(count);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "the number of examples must be 1 or more, not %R", count);
        return NULL;
    }
    /* A copy, since PyFloat_AsDouble may run code that changes the dict. */
    metrics = PyDict_Check(metrics_obj) ? PyDict_Copy(metrics_obj) : metrics_obj;
    if (metrics == metrics_obj)
        Py_INCREF(metrics);
    if (metrics == NULL || !metrics_of(metrics, metric, &report.nmetrics)) {
        Py_XDECREF(metrics);
        return NULL;
    }
    Py_DECREF(metrics);
    self = begin(obj);
    if (self == NULL)
        return NULL;
    if (has_task(self) && tni_block_get(st, block_obj, "the block", tn_client_layout(self->c)->nbytes, false, &block)) {
        j.c = self->c;
        j.task = &self->task;
        j.from = block.p;
        if (job_run(st, &j)) {
            result = Py_None;
            Py_INCREF(result);
        }
        tni_block_release(&block);
    }
    end(self);
    return result;
}

static PyObject *client_cancel(PyObject *obj, PyObject *unused) {
    tni_client *self = (tni_client *)(void *)obj;

    (void)unused;
    if (self->c != NULL && self->pid == getpid())
        tn_client_cancel(self->c);
    Py_RETURN_NONE;
}

static PyObject *client_close(PyObject *obj, PyObject *unused) {
    tni_client *self = (tni_client *)(void *)obj;
    tn_client *c;

    (void)unused;
    if (self->c == NULL || self->pid != getpid())
        Py_RETURN_NONE;
    if (begin(obj) == NULL)
        return NULL;
    c = self->c;
    self->c = NULL;
    self->joined = self->has_task = false;
    Py_BEGIN_ALLOW_THREADS
    tn_client_free(c);
    Py_END_ALLOW_THREADS
    end(self);
    Py_RETURN_NONE;
}

static PyObject *client_layout(PyObject *obj, void *unused) {
    tni_client *self = (tni_client *)(void *)obj;
    tni_state *st = tni_state_of(obj);
    tn_err err = TN_ERR_INIT;
    tn_layout copy;

    (void)unused;
    if (self->c == NULL || !has_joined(self)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the client is closed");
        return NULL;
    }
    tn_layout_init(&copy);
    if (tn_layout_copy(&copy, tn_client_layout(self->c), &err) != TN_OK) {
        tn_layout_release(&copy);
        return tni_raise(st, &err);
    }
    return tni_layout_wrap(st, &copy);
}

static PyObject *bytes_moved(PyObject *obj, uint64_t (*get)(const tn_client *)) {
    tni_client *self = (tni_client *)(void *)obj;

    if (self->c == NULL || self->pid != getpid())
        return PyLong_FromLong(0);
    return PyLong_FromUnsignedLongLong(get(self->c));
}

static PyObject *client_bytes_sent(PyObject *obj, void *unused) {
    (void)unused;
    return bytes_moved(obj, tn_client_bytes_sent);
}

static PyObject *client_bytes_received(PyObject *obj, void *unused) {
    (void)unused;
    return bytes_moved(obj, tn_client_bytes_received);
}

static PyMethodDef client_methods[] = {
    {"join", client_join, METH_VARARGS, "join(layout=None) -> dict: connects, proves identities and compares layouts."},
    {"next", client_next, METH_VARARGS, "next(timeout=None) -> dict of what to do, or None when there was nothing in that time."},
    {"model", client_model, METH_O, "model(block): the model of the current task into the block."},
    {"submit", client_submit, METH_VARARGS, "submit(delta_block, examples, metrics=None): returns once the server has it for good."},
    {"cancel", client_cancel, METH_NOARGS, "cancel(): from any thread; the call under way and later ones raise Cancelled."},
    {"close", client_close, METH_NOARGS, "close(): says good-bye and frees. Closing twice is fine."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef client_getset[] = {
    {"layout", client_layout, NULL, "the server's Layout, after join()", NULL},
    {"bytes_sent", client_bytes_sent, NULL, "bytes sent so far, framing included", NULL},
    {"bytes_received", client_bytes_received, NULL, "bytes received so far, framing included", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot client_slots[] = {
    {Py_tp_new, TNI_SLOT(client_new)},
    {Py_tp_dealloc, TNI_SLOT(client_dealloc)},
    {Py_tp_traverse, TNI_SLOT(client_traverse)},
    {Py_tp_clear, TNI_SLOT(client_clear)},
    {Py_tp_methods, client_methods},
    {Py_tp_getset, client_getset},
    {Py_tp_doc,
     TNI_SLOT("Client(url, *, cert=None, key=None, ca=None, server_name=None, identity=None, server_key=None, client_id=None,\n"
                        "       insecure=False, connect_timeout=60.0, notice=None)\n\nOne device's channel to the aggregation server.")},
    {0, NULL},
};

PyType_Spec tni_client_spec = {
    .name = "torchnative._tn.Client",
    .basicsize = (int)sizeof(tni_client),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = client_slots,
};

/* The module torchnative._tn: its functions, its exceptions, and how an error of the C side becomes one of Python's. */
#include "python/_tn.h"

#include <math.h>
#include <string.h>

#include "transport/transport.h"

static tni_state *state_of_module(PyObject *module) {
    return PyModule_GetState(module);
}

tni_state *tni_state_of(PyObject *self) {
    return PyType_GetModuleState(Py_TYPE(self));
}

/* ---- errors ---- */

static PyObject *class_for(const tni_state *st, tn_code code) {
    switch (code) {
    case TN_ETIMEDOUT:
        return PyExc_TimeoutError;
    case TN_EPEER:
        return st->peer_error;
    case TN_EINVAL:
    case TN_ESHAPE:
    case TN_ETOOBIG:
        return PyExc_ValueError;
    case TN_ENOMEM:
        return PyExc_MemoryError;
    case TN_ECANCELED:
        return st->cancelled;
    case TN_EAUTH:
        return PyExc_PermissionError;
    case TN_ENOTFOUND:
        return PyExc_FileNotFoundError;
    case TN_EROUND:
    case TN_ENONFINITE:
        return st->refused;
    case TN_OK:
    case TN_EPROTO:
    case TN_EIO:
    case TN_EUNSUPPORTED:
    case TN_EVERSION:
    case TN_EBUSY:
    case TN_EINTERNAL:
        break;
    }
    return PyExc_RuntimeError;
}

PyObject *tni_exception(tni_state *st, const tn_err *err) {
    const char *text = err->msg[0] != '\0' ? err->msg : tn_code_text(err->code);
    /* Messages may quote bytes of a peer or of a file, so they need not be UTF-8. */
    PyObject *msg = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *code = PyUnicode_FromString(tn_code_name(err->code));
    PyObject *exc = NULL;

    if (msg != NULL && code != NULL)
        exc = PyObject_CallFunctionObjArgs(class_for(st, err->code), msg, NULL);
    if (exc != NULL && PyObject_SetAttr(exc, st->n_code, code) < 0)
        Py_CLEAR(exc);
    Py_XDECREF(msg);
    Py_XDECREF(code);
    return exc;
}

PyObject *tni_raise(tni_state *st, const tn_err *err) {
    PyObject *exc = tni_exception(st, err);

    if (exc != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
        Py_DECREF(exc);
    }
    return NULL;
}

tn_code tni_err_take(tn_err *err, tn_code code, const char *what) {
    PyObject *type, *value, *trace, *text;
    const char *s = NULL;

    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    text = value != NULL ? PyObject_Str(value) : NULL;
    if (text != NULL)
        s = PyUnicode_AsUTF8AndSize(text, NULL);
    code = tn_fail(err, code, "%s: %s", what, s != NULL ? s : "an error without text");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return code;
}

bool tni_seconds(PyObject *obj, int64_t none, int64_t *ns) {
    double s;

    if (obj == NULL || obj == Py_None) {
        *ns = none;
        return true;
    }
    s = PyFloat_AsDouble(obj);
    if (s == -1.0 && PyErr_Occurred())
        return false;
    if (isnan(s) || s < 0) {
        PyErr_Format(PyExc_ValueError, "a time-out is a number of seconds, 0 or more, or None; not %R", obj);
        return false;
    }
    *ns = tn_seconds_to_ns(s);
    return true;
}

/* ---- functions ---- */

static PyObject *set_dtypes(PyObject *module, PyObject *arg) {
    tni_state *st = state_of_module(module);
    PyObject *copy;

    if (!PyDict_Check(arg)) {
        PyErr_SetString(PyExc_TypeError, "set_dtypes takes a dict of torch.dtype -> number");
        return NULL;
    }
    copy = PyDict_Copy(arg);
    if (copy == NULL)
        return NULL;
    Py_XDECREF(st->dtypes);
    st->dtypes = copy;
    Py_RETURN_NONE;
}

static PyObject *kernel_variant(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyUnicode_FromString(tn_k_variant());
}

static PyObject *force_kernel(PyObject *module, PyObject *arg) {
    const char *name = PyUnicode_Check(arg) ? PyUnicode_AsUTF8AndSize(arg, NULL) : NULL;
    tn_err err = TN_ERR_INIT;

    if (name == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "force_kernel takes the name of a variant: scalar, baseline, avx2 or avx512");
        return NULL;
    }
    if (tn_k_force(name, &err) != TN_OK)
        return tni_raise(state_of_module(module), &err);
    Py_RETURN_NONE;
}

static PyObject *route_address(PyObject *module, PyObject *arg) {
    const char *host = PyUnicode_Check(arg) ? PyUnicode_AsUTF8AndSize(arg, NULL) : NULL;
    tn_err err = TN_ERR_INIT;
    char address[128];
    tn_code code;

    if (host == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "route_address takes a host name or address");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS /* may ask a name server */
    code = tn_tx_route_address(host, address, sizeof(address), &err);
    Py_END_ALLOW_THREADS
    if (code != TN_OK)
        return tni_raise(state_of_module(module), &err);
    return PyUnicode_FromString(address);
}

static PyMethodDef functions[] = {
    {"set_dtypes", set_dtypes, METH_O, "set_dtypes(dict): torch.dtype -> number; torchnative._torch.tensor_ready() calls it."},
    {"reduce", (PyCFunction)(void (*)(void))tni_reduce, METH_VARARGS | METH_KEYWORDS,
     "reduce(op_name, dst, sources, weights=None): dst[i] = op over the sources, in their order."},
    {"kernel_variant", kernel_variant, METH_NOARGS, "The instruction set that the kernels were chosen for."},
    {"force_kernel", force_kernel, METH_O, "force_kernel(name): for tests and benchmarks; not thread-safe."},
    {"safetensors_write", tni_safetensors_write, METH_VARARGS, "safetensors_write(path, layout, block, metadata)"},
    {"safetensors_read", tni_safetensors_read, METH_O, "safetensors_read(path) -> (Layout, bytearray, metadata dict or None)"},
    {"route_address", route_address, METH_O, "route_address(host): the address of this host on the route to another."},
    {"completion_next", tni_completion_next, METH_O,
     "completion_next(timeout) -> (callable, work, idle) or None: for the threads of torchnative._completion."},
    {NULL, NULL, 0, NULL},
};

/* ---- the module ---- */

int tni_add_constants(PyObject *module) {
    static const struct {
        const char *name;
        int value;
    } dtypes[] = {
#define X(sym, value, size, torch, st) {torch, value},
        TN_DTYPES(X)
#undef X
    };
    PyObject *map = PyDict_New(), *ops = PyTuple_New(TN_OP_COUNT);
    int failed = map == NULL || ops == NULL;

    for (size_t i = 0; !failed && i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        PyObject *n = PyLong_FromLong(dtypes[i].value);

        failed = n == NULL || PyDict_SetItemString(map, dtypes[i].name, n) < 0;
        Py_XDECREF(n);
    }
    for (int i = 0; !failed && i < TN_OP_COUNT; i++) {
        PyObject *name = PyUnicode_FromString(tn_op_name((tn_op)i));

        failed = name == NULL || PyTuple_SetItem(ops, i, name) < 0;
    }
    failed = failed || PyModule_AddObjectRef(module, "DTYPES", map) < 0 || PyModule_AddObjectRef(module, "OPS", ops) < 0 ||
             PyModule_AddStringConstant(module, "__version__", TN_VERSION) < 0;
    Py_XDECREF(map);
    Py_XDECREF(ops);
    return failed ? -1 : 0;
}

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **slot) {
    *slot = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *slot == NULL ? -1 : PyModule_AddType(module, *slot);
}

static int add_exception(PyObject *module, const char *name, const char *doc, PyObject *base, PyObject **slot) {
    char full[64];

    snprintf(full, sizeof(full), "torchnative._tn.%s", name);
    *slot = PyErr_NewExceptionWithDoc(full, doc, base, NULL);
    return *slot == NULL ? -1 : PyModule_AddObjectRef(module, name, *slot);
}

static int intern(PyObject **slot, const char *name) {
    *slot = PyUnicode_InternFromString(name);
    return *slot == NULL ? -1 : 0;
}

static int module_exec(PyObject *module) {
    tni_state *st = state_of_module(module);

    st->queue = tni_queue_new();
    if (st->queue == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (intern(&st->n_data_ptr, "data_ptr") < 0 || intern(&st->n_shape, "shape") < 0 || intern(&st->n_stride, "stride") < 0 ||
        intern(&st->n_dtype, "dtype") < 0 || intern(&st->n_is_cpu, "is_cpu") < 0 || intern(&st->n_device, "device") < 0 ||
        intern(&st->n_is_conj, "is_conj") < 0 || intern(&st->n_is_neg, "is_neg") < 0 || intern(&st->n_code, "code") < 0)
        return -1;
    if (add_exception(module, "PeerError", "A peer is gone or refused.", PyExc_ConnectionError, &st->peer_error) < 0 ||
        add_exception(module, "Cancelled", "The operation was cancelled or its group closed.", PyExc_RuntimeError,
                      &st->cancelled) < 0 ||
        add_exception(module, "Refused", "An update was refused: not for this round, or not finite.", PyExc_RuntimeError,
                      &st->refused) < 0)
        return -1;
    if (add_type(module, &tni_layout_spec, &st->layout_type) < 0 || add_type(module, &tni_client_spec, &st->client_type) < 0 ||
        add_type(module, &tni_group_spec, &st->group_type) < 0 || add_type(module, &tni_work_spec, &st->work_type) < 0)
        return -1;
    if (PyModule_AddFunctions(module, tni_privacy_functions) < 0)
        return -1;
    return tni_add_constants(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    tni_state *st = state_of_module(module);

    Py_VISIT(st->dtypes);
    Py_VISIT(st->peer_error);
    Py_VISIT(st->cancelled);
    Py_VISIT(st->refused);
    Py_VISIT(st->layout_type);
    Py_VISIT(st->client_type);
    Py_VISIT(st->group_type);
    Py_VISIT(st->work_type);
    return 0;
}

static int module_clear(PyObject *module) {
    tni_state *st = state_of_module(module);

    Py_CLEAR(st->dtypes);
    Py_CLEAR(st->peer_error);
    Py_CLEAR(st->cancelled);
    Py_CLEAR(st->refused);
    Py_CLEAR(st->layout_type);
    Py_CLEAR(st->client_type);
    Py_CLEAR(st->group_type);
    Py_CLEAR(st->work_type);
    Py_CLEAR(st->n_data_ptr);
    Py_CLEAR(st->n_shape);
    Py_CLEAR(st->n_stride);
    Py_CLEAR(st->n_dtype);
    Py_CLEAR(st->n_is_cpu);
    Py_CLEAR(st->n_device);
    Py_CLEAR(st->n_is_conj);
    Py_CLEAR(st->n_is_neg);
    Py_CLEAR(st->n_code);
    return 0;
}

static void module_free(void *module) {
    tni_state *st = state_of_module(module);

    module_clear(module);
    if (st->queue != NULL)
        tni_queue_unref(st->queue);
    st->queue = NULL;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, TNI_SLOT(module_exec)},
    {0, NULL},
};

static PyModuleDef module_def = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "torchnative._tn",
    .m_doc = "The C side of torchnative.",
    .m_size = (Py_ssize_t)sizeof(tni_state),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__tn(void);

PyMODINIT_FUNC PyInit__tn(void) {
    return PyModuleDef_Init(&module_def);
}

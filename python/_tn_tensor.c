/* Tensors of torch as views, and the packed blocks of models.
 *
 * torch is not linked: a tensor is asked for its data_ptr(), shape, stride() and dtype through the interpreter, about a microsecond a tensor. */
#include "python/_tn.h"

#include <stdlib.h>
#include <string.h>

#define TORCH_MAX_DIMS 64

/* torch's dtypes as a dict; imports torch on the first use. */
static PyObject *dtypes_of(tni_state *st) {
    PyObject *helper, *done;

    if (st->dtypes != NULL)
        return st->dtypes;
    helper = PyImport_ImportModule("torchnative._torch");
    if (helper == NULL)
        return NULL;
    done = PyObject_CallMethod(helper, "tensor_ready", NULL);
    Py_DECREF(helper);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    if (st->dtypes == NULL)
        PyErr_SetString(PyExc_RuntimeError, "torchnative._torch.tensor_ready() did not call set_dtypes()");
    return st->dtypes;
}

bool tni_dtype_get(tni_state *st, PyObject *obj, tn_dtype *out) {
    PyObject *map, *number;
    long n;

    if (PyLong_Check(obj)) {
        number = obj;
    } else {
        map = dtypes_of(st);
        if (map == NULL)
            return false;
        number = PyDict_GetItemWithError(map, obj);
        if (number == NULL) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "%R is not a dtype that torchnative knows", obj);
            return false;
        }
    }
    n = PyLong_AsLong(number);
    if (n == -1 && PyErr_Occurred())
        return false;
    if (n < 0 || n >= TN_DTYPE_COUNT) {
        PyErr_Format(PyExc_ValueError, "%ld is not the number of a dtype", n);
        return false;
    }
    *out = (tn_dtype)n;
    return true;
}

/* A tuple of integers into out[TORCH_MAX_DIMS]; its length, or -1 with an error set. */
static int ints_of(PyObject *tuple, const char *what, int64_t *out) {
    Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;

    if (n < 0 || n > TORCH_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s has more than %d dimensions, or sizes that are no tuple of integers",
                     what, TORCH_MAX_DIMS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return (int)n;
}

/* The same elements in the same order by fewer dimensions: those of one element say nothing, and one whose step
 * is the length of the next goes on where that ends. In place; the number of dimensions left. */
static int fold(int ndim, int64_t *sizes, int64_t *steps) {
    int n = 0;

    for (int i = 0; i < ndim; i++)
        if (sizes[i] == 0) {
            sizes[0] = 0;
            return 1;
        }
    for (int i = 0; i < ndim; i++) {
        if (sizes[i] == 1)
            continue;
        if (n > 0 && sizes[i] <= INT64_MAX / sizes[n - 1] && steps[i] <= INT64_MAX / sizes[i] &&
            steps[n - 1] == steps[i] * sizes[i]) {
            sizes[n - 1] *= sizes[i];
        } else {
            sizes[n] = sizes[i];
            n++;
        }
        steps[n - 1] = steps[i];
    }
    return n;
}

static bool is_true(PyObject *obj, PyObject *method) {
    PyObject *answer = PyObject_CallMethodObjArgs(obj, method, NULL);
    int yes = answer != NULL ? PyObject_IsTrue(answer) : -1;

    Py_XDECREF(answer);
    return yes == 1;
}

static bool refuse_device(tni_state *st, PyObject *obj, const char *what) {
    PyObject *device = PyObject_GetAttr(obj, st->n_device);

    if (device != NULL)
        PyErr_Format(PyExc_ValueError, "%s is on %S; only CPU tensors are served: move it with .cpu()", what, device);
    Py_XDECREF(device);
    return false;
}

bool tni_tensor_get(tni_state *st, PyObject *obj, const char *what, tn_tensor *out) {
    PyObject *is_cpu = NULL, *dtype = NULL, *shape = NULL, *stride = NULL, *ptr = NULL;
    int64_t sizes[TORCH_MAX_DIMS], steps[TORCH_MAX_DIMS];
    tn_err err = TN_ERR_INIT;
    tn_dtype number;
    void *data;
    int ndim;
    bool ok = false;

    is_cpu = PyObject_GetAttr(obj, st->n_is_cpu);
    if (is_cpu == NULL) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be a torch.Tensor, not %R", what, (PyObject *)Py_TYPE(obj));
        goto out;
    }
    if (is_cpu != Py_True) {
        refuse_device(st, obj, what);
        goto out;
    }
    dtype = PyObject_GetAttr(obj, st->n_dtype);
    if (dtype == NULL || !tni_dtype_get(st, dtype, &number))
        goto out;
    if (tn_dtype_is_complex(number) && is_true(obj, st->n_is_conj)) {
        PyErr_Format(PyExc_ValueError, "%s is a lazily conjugated view: call .resolve_conj() first", what);
        goto out;
    }
    if (is_true(obj, st->n_is_neg)) {
        PyErr_Format(PyExc_ValueError, "%s is a lazily negated view: call .resolve_neg() first", what);
        goto out;
    }
    ptr = PyObject_CallMethodObjArgs(obj, st->n_data_ptr, NULL);
    stride = ptr != NULL ? PyObject_CallMethodObjArgs(obj, st->n_stride, NULL) : NULL;
    if (stride == NULL) {
        /* Sparse, opaque and fake tensors have neither. */
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s is not a dense tensor with memory of its own (sparse? call .to_dense() first)", what);
        goto out;
    }
    shape = PyObject_GetAttr(obj, st->n_shape);
    data = PyLong_AsVoidPtr(ptr);
    if (shape == NULL || PyErr_Occurred())
        goto out;
    ndim = ints_of(shape, what, sizes);
    if (ndim < 0 || ints_of(stride, what, steps) != ndim)
        goto out;
    if (ndim > TN_MAX_DIMS)
        ndim = fold(ndim, sizes, steps);
    if (ndim > TN_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError,
                     "%s has %d dimensions that are not one behind the other in memory, more than %d: "
                     "call .contiguous() first",
                     what, ndim, TN_MAX_DIMS);
        goto out;
    }
    if (tn_tensor_init_strided(out, data, (int)number, ndim, sizes, steps, &err) != TN_OK) {
        tni_raise(st, &err);
        goto out;
    }
    ok = true;
out:
    Py_XDECREF(is_cpu);
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    Py_XDECREF(ptr);
    if (!ok && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s: shape and strides differ in length", what);
    return ok;
}

bool tni_tensors_get(tni_state *st, PyObject *seq, const char *what, tni_tensors *out) {
    Py_ssize_t n;
    char name[80];

    *out = (tni_tensors){0, NULL, NULL};
    /* A tensor is a sequence too (of its rows): a list is meant. */
    if (!PyList_Check(seq) && !PyTuple_Check(seq)) {
        PyErr_Format(PyExc_TypeError, "%s must be a list of tensors, not %R", what, (PyObject *)Py_TYPE(seq));
        return false;
    }
    out->held = PySequence_List(seq);
    if (out->held == NULL)
        return false;
    n = PyList_Size(out->held);
    out->t = calloc((size_t)n + 1, sizeof(*out->t));
    if (out->t == NULL) {
        PyErr_NoMemory();
        return false;
    }
    out->n = (size_t)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s[%zd]", what, i);
        if (!tni_tensor_get(st, PyList_GetItem(out->held, i), name, &out->t[i]))
            return false;
    }
    return true;
}

void tni_tensors_release(tni_tensors *ts) {
    free(ts->t);
    Py_XDECREF(ts->held);
    *ts = (tni_tensors){0, NULL, NULL};
}

bool tni_block_get(tni_state *st, PyObject *obj, const char *what, size_t nbytes, bool writable, tni_block *out) {
    tn_tensor t;

    memset(out, 0, sizeof(*out));
    if (PyObject_CheckBuffer(obj)) {
        if (PyObject_GetBuffer(obj, &out->view, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) < 0)
            return false;
        out->is_view = true;
        out->p = out->view.buf;
        out->n = (size_t)out->view.len;
    } else {
        if (!tni_tensor_get(st, obj, what, &t))
            return false;
        if (t.dtype != TN_U8 || t.ndim != 1 || !tn_tensor_contiguous(&t)) {
            char is[128];

            PyErr_Format(PyExc_ValueError, "%s must be a contiguous one-dimensional torch.uint8 tensor; it is %s%s", what,
                         tn_tensor_describe(&t, is, sizeof(is)), tn_tensor_contiguous(&t) ? "" : " with gaps");
            return false;
        }
        Py_INCREF(obj);
        out->held = obj;
        out->p = t.data;
        out->n = tn_tensor_nbytes(&t);
    }
    if (out->n != nbytes) {
        PyErr_Format(PyExc_ValueError, "%s has %zu bytes where the layout has %zu", what, out->n, nbytes);
        tni_block_release(out);
        return false;
    }
    return true;
}

void tni_block_release(tni_block *b) {
    if (b->is_view)
        PyBuffer_Release(&b->view);
    Py_XDECREF(b->held);
    memset(b, 0, sizeof(*b));
}

bool tni_op_get(const char *name, tn_op *out) {
    for (int i = 0; i < TN_OP_COUNT; i++) {
        if (strcmp(name, tn_op_name((tn_op)i)) == 0) {
            *out = (tn_op)i;
            return true;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "there is no reduction '%s'; there are SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM and WMEAN", name);
    return false;
}

/* Reads one factor a source; the rules of WMEAN are asserted by the kernel, so they are checked here. */
static double *weights_of(PyObject *obj, size_t n, tn_op op) {
    PyObject *list = obj != NULL && obj != Py_None ? PySequence_List(obj) : NULL;
    double *w = NULL, sum = 0;

    if (list == NULL) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "%s needs weights, one a source", tn_op_name(op));
        return NULL;
    }
    if ((size_t)PyList_Size(list) != n) {
        PyErr_Format(PyExc_ValueError, "there are %zd weights for %zu sources", PyList_Size(list), n);
        goto fail;
    }
    w = calloc(n, sizeof(*w));
    if (w == NULL) {
        PyErr_NoMemory();
        goto fail;
    }
    for (size_t i = 0; i < n; i++) {
        w[i] = PyFloat_AsDouble(PyList_GetItem(list, (Py_ssize_t)i));
        if (w[i] == -1.0 && PyErr_Occurred())
            goto fail;
        if (op == TN_WMEAN && !(w[i] >= 0 && w[i] <= 1e300)) {
            PyErr_Format(PyExc_ValueError, "weight %zu of WMEAN must be finite and not negative", i);
            goto fail;
        }
        sum += w[i];
    }
    if (op == TN_WMEAN && !(sum > 0)) {
        PyErr_SetString(PyExc_ValueError, "the weights of WMEAN are all zero");
        goto fail;
    }
    Py_DECREF(list);
    return w;
fail:
    Py_DECREF(list);
    free(w);
    return NULL;
}

PyObject *tni_reduce(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"op_name", "dst", "sources", "weights", NULL};
    tni_state *st = PyModule_GetState(module);
    PyObject *dst_obj, *sources_obj, *weights_obj = NULL, *result = NULL;
    tni_tensors src = {0, NULL, NULL};
    const void **data = NULL;
    double *weights = NULL;
    const char *op_name;
    tn_err err = TN_ERR_INIT;
    tn_tensor dst;
    tn_op op;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOO|O:reduce", TNI_NAMES(names), &op_name, &dst_obj, &sources_obj, &weights_obj) ||
        !tni_op_get(op_name, &op) || !tni_tensor_get(st, dst_obj, "dst", &dst) ||
        !tni_tensors_get(st, sources_obj, "sources", &src))
        goto out;
    if (src.n == 0) {
        PyErr_SetString(PyExc_ValueError, "reduce needs at least one source");
        goto out;
    }
    if (tn_k_reduce_check(op, dst.dtype, &err) != TN_OK) {
        tni_raise(st, &err);
        goto out;
    }
    data = calloc(src.n, sizeof(*data));
    if (data == NULL) {
        PyErr_NoMemory();
        goto out;
    }
    for (size_t i = 0; i < src.n; i++) {
        char a[128], b[128];

        if (src.t[i].dtype != dst.dtype || tn_tensor_numel(&src.t[i]) != tn_tensor_numel(&dst)) {
            PyErr_Format(PyExc_ValueError, "sources[%zu] is %s and dst is %s", i, tn_tensor_describe(&src.t[i], a, sizeof(a)),
                         tn_tensor_describe(&dst, b, sizeof(b)));
            goto out;
        }
        if (!tn_tensor_contiguous(&src.t[i]) || !tn_tensor_contiguous(&dst)) {
            PyErr_SetString(PyExc_ValueError, "reduce takes contiguous tensors: call .contiguous() first");
            goto out;
        }
        data[i] = src.t[i].data;
    }
    if (op == TN_PREMUL_SUM || op == TN_WMEAN) {
        weights = weights_of(weights_obj, src.n, op);
        if (weights == NULL)
            goto out;
    }
    if (tn_tensor_numel(&dst) > 0) {
        Py_BEGIN_ALLOW_THREADS
        tn_k_reduce(op, dst.dtype, dst.data, data, weights, src.n, (size_t)tn_tensor_numel(&dst));
        Py_END_ALLOW_THREADS
    }
    result = Py_None;
    Py_INCREF(result);
out:
    free(data);
    free(weights);
    tni_tensors_release(&src);
    return result;
}

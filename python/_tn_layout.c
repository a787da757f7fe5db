/* Layout: names, dtypes and shapes of a model, how its tensors go into one block and back, and models as .safetensors files. */
#include "python/_tn.h"

#include <stdlib.h>
#include <string.h>

#include "core/safetensors.h"
#include "fed/fed.h"

PyObject *tni_shape_tuple(int ndim, const int64_t *shape) {
    PyObject *tuple = PyTuple_New(ndim);

    for (int i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *n = PyLong_FromLongLong(shape[i]);

        if (n == NULL || PyTuple_SetItem(tuple, i, n) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

PyObject *tni_layout_wrap(tni_state *st, tn_layout *l) {
    allocfunc alloc = TNI_FN(allocfunc, PyType_GetSlot(st->layout_type, Py_tp_alloc));
    tni_layout *self = (tni_layout *)(void *)alloc(st->layout_type, 0);

    if (self == NULL) {
        tn_layout_release(l);
        return NULL;
    }
    self->l = *l;
    tn_layout_init(l);
    return (PyObject *)self;
}

/* (name, dtype, shape) into the layout. */
static bool add_entry(tni_state *st, tn_layout *l, PyObject *item) {
    PyObject *tuple = PySequence_Tuple(item), *dtype_obj, *shape_obj, *shape = NULL;
    int64_t sizes[TN_MAX_DIMS];
    tn_err err = TN_ERR_INIT;
    const char *name;
    tn_dtype dtype;
    Py_ssize_t n;
    bool ok = false;

    if (tuple == NULL || !PyArg_ParseTuple(tuple, "sOO;an entry of a Layout is (name, dtype, shape)", &name, &dtype_obj, &shape_obj) ||
        !tni_dtype_get(st, dtype_obj, &dtype))
        goto out;
    shape = PySequence_Tuple(shape_obj);
    if (shape == NULL)
        goto out;
    n = PyTuple_Size(shape);
    if (n > TN_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s has %zd dimensions; at most %d are served", name, n, TN_MAX_DIMS);
        goto out;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (sizes[i] == -1 && PyErr_Occurred())
            goto out;
    }
    if (tn_layout_add(l, name, dtype, (int)n, sizes, &err) != TN_OK) {
        tni_raise(st, &err);
        goto out;
    }
    ok = true;
out:
    Py_XDECREF(tuple);
    Py_XDECREF(shape);
    return ok;
}

static PyObject *layout_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"entries", NULL};
    tni_state *st = PyType_GetModuleState(type);
    PyObject *entries, *iter, *item;
    tn_err err = TN_ERR_INIT;
    tn_layout l;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Layout", TNI_NAMES(names), &entries))
        return NULL;
    iter = PyObject_GetIter(entries);
    if (iter == NULL)
        return NULL;
    tn_layout_init(&l);
    while ((item = PyIter_Next(iter)) != NULL) {
        bool ok = add_entry(st, &l, item);

        Py_DECREF(item);
        if (!ok)
            break;
    }
    Py_DECREF(iter);
    if (!PyErr_Occurred() && tn_layout_seal(&l, &err) != TN_OK)
        tni_raise(st, &err);
    if (PyErr_Occurred()) {
        tn_layout_release(&l);
        return NULL;
    }
    return tni_layout_wrap(st, &l);
}

static void layout_dealloc(PyObject *obj) {
    PyTypeObject *type = Py_TYPE(obj);
    freefunc release = TNI_FN(freefunc, PyType_GetSlot(type, Py_tp_free));

    tn_layout_release(&((tni_layout *)(void *)obj)->l);
    release(obj);
    Py_DECREF(type);
}

static tn_layout *layout_of(PyObject *self) {
    return &((tni_layout *)(void *)self)->l;
}

/* Views of the dict's tensors in the layout's order, each checked against its entry; out->held keeps them. */
static bool tensors_by_name(tni_state *st, const tn_layout *l, PyObject *dict, tni_tensors *out) {
    *out = (tni_tensors){0, NULL, NULL};
    if (!PyDict_Check(dict)) {
        PyErr_Format(PyExc_TypeError, "tensors must be a dict of name -> tensor, not %R", (PyObject *)Py_TYPE(dict));
        return false;
    }
    out->held = PyList_New(0);
    out->t = calloc(l->count + 1, sizeof(*out->t));
    if (out->held == NULL || out->t == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];
        PyObject *name = PyUnicode_FromString(e->name), *value;
        tn_tensor want;
        char a[160], b[160];

        value = name != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
        Py_XDECREF(name);
        if (value == NULL) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "there is no tensor '%s', which the layout has", e->name);
            return false;
        }
        if (PyList_Append(out->held, value) < 0 || !tni_tensor_get(st, value, e->name, &out->t[i]))
            return false;
        if (out->t[i].dtype != e->dtype || out->t[i].ndim != e->ndim ||
            memcmp(out->t[i].shape, e->shape, (size_t)e->ndim * sizeof(e->shape[0])) != 0) {
            want = tn_layout_tensor(l, i, NULL);
            PyErr_Format(PyExc_ValueError, "%s is %s and the layout has %s", e->name, tn_tensor_describe(&out->t[i], a, sizeof(a)),
                         tn_tensor_describe(&want, b, sizeof(b)));
            return false;
        }
    }
    out->n = l->count;
    if ((size_t)PyDict_Size(dict) != l->count) {
        PyErr_Format(PyExc_ValueError, "there are %zd tensors and the layout has %zu", PyDict_Size(dict), l->count);
        return false;
    }
    return true;
}

static PyObject *move(PyObject *self, PyObject *dict, PyObject *block_obj, bool pack) {
    tni_state *st = tni_state_of(self);
    const tn_layout *l = layout_of(self);
    tni_tensors ts = {0, NULL, NULL};
    PyObject *result = NULL;
    tni_block block;

    if (!tni_block_get(st, block_obj, "the block", l->nbytes, pack, &block))
        return NULL;
    if (tensors_by_name(st, l, dict, &ts)) {
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < l->count; i++) {
            if (pack)
                tn_tensor_pack(&ts.t[i], block.p + l->entry[i].offset);
            else
                tn_tensor_unpack(&ts.t[i], block.p + l->entry[i].offset);
        }
        Py_END_ALLOW_THREADS
        result = Py_None;
        Py_INCREF(result);
    }
    tni_tensors_release(&ts);
    tni_block_release(&block);
    return result;
}

static PyObject *layout_pack(PyObject *self, PyObject *args) {
    PyObject *dict, *block;

    return PyArg_ParseTuple(args, "OO:pack", &dict, &block) ? move(self, dict, block, true) : NULL;
}

static PyObject *layout_unpack(PyObject *self, PyObject *args) {
    PyObject *dict, *block;

    return PyArg_ParseTuple(args, "OO:unpack", &block, &dict) ? move(self, dict, block, false) : NULL;
}

static PyObject *layout_delta(PyObject *self, PyObject *args) {
    tni_state *st = tni_state_of(self);
    const tn_layout *l = layout_of(self);
    PyObject *local_obj, *base_obj, *out_obj, *result = NULL;
    tni_block local = {0}, base = {0}, out = {0};

    if (!PyArg_ParseTuple(args, "OOO:delta", &local_obj, &base_obj, &out_obj))
        return NULL;
    if (tni_block_get(st, local_obj, "local", l->nbytes, false, &local) && tni_block_get(st, base_obj, "base", l->nbytes, false, &base) &&
        tni_block_get(st, out_obj, "out", l->nbytes, true, &out)) {
        Py_BEGIN_ALLOW_THREADS
        tn_delta_make(l, local.p, base.p, out.p);
        Py_END_ALLOW_THREADS
        result = Py_None;
        Py_INCREF(result);
    }
    tni_block_release(&local);
    tni_block_release(&base);
    tni_block_release(&out);
    return result;
}

static PyObject *layout_apply(PyObject *self, PyObject *args) {
    tni_state *st = tni_state_of(self);
    const tn_layout *l = layout_of(self);
    PyObject *model_obj, *delta_obj, *result = NULL;
    tni_block model = {0}, delta = {0};

    if (!PyArg_ParseTuple(args, "OO:apply", &model_obj, &delta_obj))
        return NULL;
    if (tni_block_get(st, model_obj, "model", l->nbytes, true, &model) &&
        tni_block_get(st, delta_obj, "delta", l->nbytes, false, &delta)) {
        Py_BEGIN_ALLOW_THREADS
        tn_delta_apply(l, model.p, delta.p);
        Py_END_ALLOW_THREADS
        result = Py_None;
        Py_INCREF(result);
    }
    tni_block_release(&model);
    tni_block_release(&delta);
    return result;
}

static PyObject *layout_same(PyObject *self, PyObject *args) {
    tni_state *st = tni_state_of(self);
    const char *self_is, *other_is;
    tn_err err = TN_ERR_INIT;
    PyObject *other;

    if (!PyArg_ParseTuple(args, "O!ss:same", st->layout_type, &other, &self_is, &other_is))
        return NULL;
    if (tn_layout_same(layout_of(self), self_is, layout_of(other), other_is, &err) != TN_OK)
        return tni_raise(st, &err);
    Py_RETURN_NONE;
}

static PyObject *layout_runs(PyObject *self, PyObject *unused) {
    const tn_layout *l = layout_of(self);
    PyObject *list = PyList_New(0);

    (void)unused;
    for (size_t i = 0; list != NULL && i < l->count;) {
        size_t end = i;
        PyObject *run;

        while (end < l->count && l->entry[end].dtype == l->entry[i].dtype)
            end++;
        run = Py_BuildValue("(inn)", (int)l->entry[i].dtype, (Py_ssize_t)l->entry[i].offset,
                            (Py_ssize_t)(l->entry[end - 1].offset + l->entry[end - 1].nbytes - l->entry[i].offset));
        if (run == NULL || PyList_Append(list, run) < 0)
            Py_CLEAR(list);
        Py_XDECREF(run);
        i = end;
    }
    return list;
}

static PyObject *layout_check_update(PyObject *self, PyObject *args) {
    tni_state *st = tni_state_of(self);
    const tn_layout *l = layout_of(self);
    tn_err err = TN_ERR_INIT;
    PyObject *block_obj, *count;
    tn_update update = {0};
    tni_block block;
    tn_code code;

    if (!PyArg_ParseTuple(args, "OO!s:check_update", &block_obj, &PyLong_Type, &count, &update.client))
        return NULL;
    update.examples = PyLong_AsUnsignedLongLong(count);
    if (PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "the update of %s has %R examples; a count is 1 to 2^40", update.client, count);
        }
        return NULL;
    }
    if (!tni_block_get(st, block_obj, "the block", l->nbytes, false, &block))
        return NULL;
    update.block = block.p;
    Py_BEGIN_ALLOW_THREADS
    code = tn_update_check(l, &update, &err);
    Py_END_ALLOW_THREADS
    tni_block_release(&block);
    if (code != TN_OK)
        return tni_raise(st, &err);
    Py_RETURN_NONE;
}

static PyObject *layout_entries(PyObject *self, void *unused) {
    const tn_layout *l = layout_of(self);
    PyObject *list = PyList_New(0);

    (void)unused;
    for (size_t i = 0; list != NULL && i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];
        PyObject *shape = tni_shape_tuple(e->ndim, e->shape), *item = NULL;

        if (shape != NULL)
            item = Py_BuildValue("(siNnn)", e->name, (int)e->dtype, shape, (Py_ssize_t)e->offset, (Py_ssize_t)e->nbytes);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *layout_nbytes(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(layout_of(self)->nbytes);
}

static PyObject *layout_count(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(layout_of(self)->count);
}

static PyObject *layout_repr(PyObject *self) {
    return PyUnicode_FromFormat("Layout(%zu tensors, %zu bytes)", layout_of(self)->count, layout_of(self)->nbytes);
}

static PyMethodDef layout_methods[] = {
    {"pack", layout_pack, METH_VARARGS, "pack(tensors, block): the tensors of a dict into the block."},
    {"unpack", layout_unpack, METH_VARARGS, "unpack(block, tensors): the block into the tensors of a dict."},
    {"delta", layout_delta, METH_VARARGS, "delta(local, base, out): out = local - base, by the rule of each dtype."},
    {"apply", layout_apply, METH_VARARGS, "apply(model, delta): model += delta, by the rule of each dtype."},
    {"same", layout_same, METH_VARARGS, "same(other, self_is, other_is): raises ValueError with the first difference."},
    {"runs", layout_runs, METH_NOARGS, "runs() -> [(dtype number, offset, nbytes)]: the longest stretches of one dtype."},
    {"check_update", layout_check_update, METH_VARARGS, "check_update(block, examples, client): raises what a server would refuse."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef layout_getset[] = {
    {"nbytes", layout_nbytes, NULL, "bytes of a block", NULL},
    {"count", layout_count, NULL, "number of tensors", NULL},
    {"entries", layout_entries, NULL, "[(name, dtype number, shape, offset, nbytes)] in the block's order", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot layout_slots[] = {
    {Py_tp_new, TNI_SLOT(layout_new)},
    {Py_tp_dealloc, TNI_SLOT(layout_dealloc)},
    {Py_tp_repr, TNI_SLOT(layout_repr)},
    {Py_tp_methods, layout_methods},
    {Py_tp_getset, layout_getset},
    {Py_tp_doc, TNI_SLOT("Layout(entries): names, dtypes and shapes of a model, from (name, dtype, shape) triples. Immutable.")},
    {0, NULL},
};

PyType_Spec tni_layout_spec = {
    .name = "torchnative._tn.Layout",
    .basicsize = (int)sizeof(tni_layout),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = layout_slots,
};

/* ---- files ---- */

/* The dict's pairs as C strings, borrowed from it. */
static bool meta_of(PyObject *dict, tn_st_meta *meta, size_t *n) {
    PyObject *key, *value;
    Py_ssize_t at = 0;

    *n = 0;
    if (dict == Py_None)
        return true;
    if (!PyDict_Check(dict) || PyDict_Size(dict) > TN_ST_MAX_META) {
        PyErr_Format(PyExc_ValueError, "metadata is a dict of at most %d strings, or None", TN_ST_MAX_META);
        return false;
    }
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (!PyUnicode_Check(key) || !PyUnicode_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "keys and values of metadata are strings");
            return false;
        }
        meta[*n].key = PyUnicode_AsUTF8AndSize(key, NULL);
        meta[*n].value = PyUnicode_AsUTF8AndSize(value, NULL);
        if (meta[*n].key == NULL || meta[*n].value == NULL)
            return false;
        (*n)++;
    }
    return true;
}

PyObject *tni_safetensors_write(PyObject *module, PyObject *args) {
    tni_state *st = PyModule_GetState(module);
    PyObject *path_obj = NULL, *layout, *block_obj, *meta_obj, *copy = NULL, *result = NULL;
    tn_st_meta meta[TN_ST_MAX_META];
    tn_err err = TN_ERR_INIT;
    tni_block block;
    const char *path;
    size_t nmeta;
    tn_code code;

    if (!PyArg_ParseTuple(args, "O&O!OO:safetensors_write", PyUnicode_FSConverter, &path_obj, st->layout_type, &layout, &block_obj,
                          &meta_obj))
        return NULL;
    path = PyBytes_AsString(path_obj);
    /* A copy of the dict, so that nobody takes the strings away while the lock is released. */
    copy = PyDict_Check(meta_obj) ? PyDict_Copy(meta_obj) : meta_obj;
    if (copy == meta_obj)
        Py_INCREF(copy);
    if (path == NULL || copy == NULL || !meta_of(copy, meta, &nmeta) ||
        !tni_block_get(st, block_obj, "the block", layout_of(layout)->nbytes, false, &block))
        goto out;
    Py_BEGIN_ALLOW_THREADS
    code = tn_st_write(path, layout_of(layout), block.p, meta, nmeta, &err);
    Py_END_ALLOW_THREADS
    tni_block_release(&block);
    if (code != TN_OK) {
        tni_raise(st, &err);
        goto out;
    }
    result = Py_None;
    Py_INCREF(result);
out:
    Py_XDECREF(path_obj);
    Py_XDECREF(copy);
    return result;
}

static PyObject *json_value(const char *text) {
    PyObject *json, *value;

    if (text == NULL)
        Py_RETURN_NONE;
    json = PyImport_ImportModule("json");
    value = json != NULL ? PyObject_CallMethod(json, "loads", "s", text) : NULL;
    Py_XDECREF(json);
    return value;
}

PyObject *tni_safetensors_read(PyObject *module, PyObject *arg) {
    tni_state *st = PyModule_GetState(module);
    PyObject *path_obj = NULL, *layout = NULL, *bytes = NULL, *meta = NULL, *result = NULL;
    uint8_t *block = NULL;
    char *meta_json = NULL;
    tn_err err = TN_ERR_INIT;
    const char *path;
    size_t nbytes;
    tn_layout l;
    tn_code code;

    if (!PyUnicode_FSConverter(arg, &path_obj))
        return NULL;
    path = PyBytes_AsString(path_obj);
    tn_layout_init(&l);
    Py_BEGIN_ALLOW_THREADS
    code = tn_st_read(path, &l, &block, &meta_json, &err);
    Py_END_ALLOW_THREADS
    if (code != TN_OK) {
        tni_raise(st, &err);
        goto out;
    }
    nbytes = l.nbytes;
    /* A bytearray, so that torch.frombuffer gives a tensor that may be written to. */
    bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)nbytes);
    layout = tni_layout_wrap(st, &l);
    meta = json_value(meta_json);
    if (bytes == NULL || layout == NULL || meta == NULL)
        goto out;
    if (nbytes > 0) {
        void *to = PyByteArray_AsString(bytes);

        Py_BEGIN_ALLOW_THREADS
        memcpy(to, block, nbytes);
        Py_END_ALLOW_THREADS
    }
    result = PyTuple_Pack(3, layout, bytes, meta);
out:
    free(block);
    free(meta_json);
    Py_XDECREF(path_obj);
    Py_XDECREF(layout);
    Py_XDECREF(bytes);
    Py_XDECREF(meta);
    return result;
}

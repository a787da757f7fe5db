/* Differential privacy: privacy/dp.h for Python. */
#include "python/_tn.h"

#include <stdlib.h>
#include <string.h>

#include "privacy/privacy.h"

/* `orders`: None, or numbers. False with an error set. */
static bool orders_get(PyObject *obj, double **out, size_t *n) {
    PyObject *list;
    double *number;

    *out = NULL;
    *n = 0;
    if (obj == NULL || obj == Py_None)
        return true;
    list = PySequence_List(obj);
    if (list == NULL)
        return false;
    *n = (size_t)PyList_Size(list);
    number = malloc(*n * sizeof(*number) + 1);
    if (number == NULL)
        PyErr_NoMemory();
    for (size_t i = 0; number != NULL && i < *n && !PyErr_Occurred(); i++)
        number[i] = PyFloat_AsDouble(PyList_GetItem(list, (Py_ssize_t)i));
    Py_DECREF(list);
    if (PyErr_Occurred()) {
        free(number);
        return false;
    }
    *out = number;
    return true;
}

/* A name of the table, by its index; -1 with an error set. */
static int choice(const char *what, const char *name, const char *const *names, int n) {
    for (int i = 0; i < n; i++) {
        if (strcmp(name, names[i]) == 0)
            return i;
    }
    PyErr_Format(PyExc_ValueError, "%s is '%s'; there are '%s' and '%s'", what, name, names[0], names[1]);
    return -1;
}

static bool count_get(const char *what, long long n, uint64_t *out) {
    if (n < 0) {
        PyErr_Format(PyExc_ValueError, "%s is %lld; it must not be negative", what, n);
        return false;
    }
    *out = (uint64_t)n;
    return true;
}

static const char *const accountants[] = {"rdp", "pld"};
static const char *const noises[] = {"skellam", "discrete_gaussian"};

static PyObject *epsilon(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"q", "sigma", "steps", "delta", "accountant", "orders", NULL};
    tn_dp_step step = {.noise = TN_DP_GAUSSIAN};
    const char *name = accountants[0];
    PyObject *seq = NULL;
    double delta, *orders;
    size_t norders;
    long long steps;
    tn_dp_spent spent;
    tn_err err = TN_ERR_INIT;
    tn_code code;
    int how;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ddLd|sO", TNI_NAMES(names), &step.q, &step.sigma, &steps, &delta, &name, &seq) ||
        (how = choice("accountant", name, accountants, 2)) < 0 || !count_get("steps", steps, &step.count) ||
        !orders_get(seq, &orders, &norders))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = tn_dp_epsilon((tn_dp_accountant)how, &step, 1, delta, orders, norders, &spent, &err);
    Py_END_ALLOW_THREADS
    free(orders);
    return code == TN_OK ? PyFloat_FromDouble(spent.epsilon) : tni_raise(PyModule_GetState(module), &err);
}

static PyObject *calibrate(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"epsilon", "q", "steps", "delta", "accountant", "orders", NULL};
    const char *name = accountants[0];
    PyObject *seq = NULL;
    double target, q, delta, sigma = 0, *orders;
    size_t norders;
    long long steps;
    uint64_t count;
    tn_err err = TN_ERR_INIT;
    tn_code code;
    int how;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ddLd|sO", TNI_NAMES(names), &target, &q, &steps, &delta, &name, &seq) ||
        (how = choice("accountant", name, accountants, 2)) < 0 || !count_get("steps", steps, &count) ||
        !orders_get(seq, &orders, &norders))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = tn_dp_calibrate((tn_dp_accountant)how, target, q, count, delta, orders, norders, &sigma, &err);
    Py_END_ALLOW_THREADS
    free(orders);
    return code == TN_OK ? PyFloat_FromDouble(sigma) : tni_raise(PyModule_GetState(module), &err);
}

static PyObject *distributed_epsilon(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"noise", "scale", "sigma",  "clients", "clip",
                                        "beta",  "dimension", "steps", "delta", "orders", NULL};
    tn_dp_distributed d = {.noise = TN_DP_SKELLAM};
    const char *name;
    PyObject *seq = NULL;
    double delta, *orders;
    size_t norders;
    long long clients, dimension, steps;
    uint64_t count;
    tn_dp_spent spent;
    tn_err err = TN_ERR_INIT;
    tn_code code;
    int noise;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sddLddLLd|O", TNI_NAMES(names), &name, &d.scale, &d.sigma, &clients, &d.clip,
                                     &d.beta, &dimension, &steps, &delta, &seq) ||
        (noise = choice("noise", name, noises, 2)) < 0 || !count_get("clients", clients, &d.clients) ||
        !count_get("dimension", dimension, &d.dimension) || !count_get("steps", steps, &count) || !orders_get(seq, &orders, &norders))
        return NULL;
    d.noise = (tn_dp_shared)noise;
    Py_BEGIN_ALLOW_THREADS
    code = tn_dp_distributed_epsilon(&d, count, delta, orders, norders, &spent, &err);
    Py_END_ALLOW_THREADS
    free(orders);
    return code == TN_OK ? PyFloat_FromDouble(spent.epsilon) : tni_raise(PyModule_GetState(module), &err);
}

static PyObject *gaussian_sigma(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"epsilon", "delta", NULL};
    double target, delta, sigma;
    tn_err err = TN_ERR_INIT;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "dd", TNI_NAMES(names), &target, &delta))
        return NULL;
    if (tn_dp_gaussian_sigma(target, delta, &sigma, &err) != TN_OK)
        return tni_raise(PyModule_GetState(module), &err);
    return PyFloat_FromDouble(sigma);
}

static PyObject *gaussian_epsilon(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"sigma", "delta", NULL};
    double sigma, delta, got;
    tn_err err = TN_ERR_INIT;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "dd", TNI_NAMES(names), &sigma, &delta))
        return NULL;
    if (tn_dp_gaussian_epsilon(sigma, delta, &got, &err) != TN_OK)
        return tni_raise(PyModule_GetState(module), &err);
    return PyFloat_FromDouble(got);
}

/* ---- Updates ---- */

/* A contiguous torch.int64 tensor. */
static bool integers_get(tni_state *st, PyObject *obj, const char *what, tn_tensor *t) {
    char is[96];

    if (!tni_tensor_get(st, obj, what, t))
        return false;
    if (t->dtype == TN_I64 && tn_tensor_contiguous(t))
        return true;
    PyErr_Format(PyExc_ValueError, "%s must be a contiguous torch.int64 tensor; it is %s", what,
                 tn_tensor_describe(t, is, sizeof(is)));
    return false;
}

static bool grid_get(tni_state *st, const tn_layout *l, double clip, double noise, const tn_tensor *t, tn_dp_grid *g) {
    tn_err err = TN_ERR_INIT;

    if (tn_dp_grid_init(g, l, clip, noise, &err) != TN_OK) {
        tni_raise(st, &err);
        return false;
    }
    if (t == NULL || (uint64_t)tn_tensor_numel(t) == g->dimension)
        return true;
    PyErr_Format(PyExc_ValueError, "the grid has %lld numbers, the model %llu", (long long)tn_tensor_numel(t),
                 (unsigned long long)g->dimension);
    return false;
}

static PyObject *grid(PyObject *module, PyObject *args) {
    tni_state *st = PyModule_GetState(module);
    PyObject *layout;
    double clip, noise;
    tn_dp_grid g;

    if (!PyArg_ParseTuple(args, "O!dd", st->layout_type, &layout, &clip, &noise) ||
        !grid_get(st, &((tni_layout *)(void *)layout)->l, clip, noise, NULL, &g))
        return NULL;
    return Py_BuildValue("Kdd", (unsigned long long)g.dimension, g.step, g.sigma);
}

static PyObject *to_grid(PyObject *module, PyObject *args) {
    tni_state *st = PyModule_GetState(module);
    PyObject *layout, *block, *out;
    double clip, noise;
    bool within = false;
    const tn_layout *l;
    tn_tensor t;
    tni_block b;
    tn_dp_grid g;

    if (!PyArg_ParseTuple(args, "O!OddO", st->layout_type, &layout, &block, &clip, &noise, &out))
        return NULL;
    l = &((tni_layout *)(void *)layout)->l;
    if (!integers_get(st, out, "out", &t) || !grid_get(st, l, clip, noise, &t, &g) ||
        !tni_block_get(st, block, "block", l->nbytes, false, &b))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    tn_dp_to_grid(&g, l, b.p, t.data, &within);
    Py_END_ALLOW_THREADS
    tni_block_release(&b);
    return PyBool_FromLong(within);
}

static PyObject *from_grid(PyObject *module, PyObject *args) {
    tni_state *st = PyModule_GetState(module);
    PyObject *layout, *block, *in;
    double factor;
    const tn_layout *l;
    tn_tensor t;
    tni_block b;
    tn_dp_grid g;

    if (!PyArg_ParseTuple(args, "O!OdO", st->layout_type, &layout, &in, &factor, &block))
        return NULL;
    l = &((tni_layout *)(void *)layout)->l;
    if (!integers_get(st, in, "in", &t) || !grid_get(st, l, 1, 1, &t, &g) ||
        !tni_block_get(st, block, "block", l->nbytes, true, &b))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    tn_dp_from_grid(l, t.data, factor, b.p);
    Py_END_ALLOW_THREADS
    tni_block_release(&b);
    Py_RETURN_NONE;
}

/* A piece at a time, so that the noise takes no more memory than that. */
static tn_code noise_onto(int64_t *p, size_t n, double variance, tn_err *err) {
    int64_t piece[1024];
    tn_dp_sampler *s = NULL;
    tn_code code = tn_dp_sampler_new(&s, TN_DP_SAMPLE_GAUSSIAN, variance, NULL, err);

    for (size_t done = 0; code == TN_OK && done < n;) {
        size_t k = n - done < 1024 ? n - done : 1024;

        tn_dp_sample(s, piece, k);
        tn_k_add(TN_I64, p + done, p + done, piece, k);
        done += k;
    }
    tn_dp_sampler_free(s);
    return code;
}

static PyObject *add_noise(PyObject *module, PyObject *args) {
    tni_state *st = PyModule_GetState(module);
    PyObject *out;
    double variance;
    tn_tensor t;
    tn_err err = TN_ERR_INIT;
    tn_code code;

    if (!PyArg_ParseTuple(args, "Od", &out, &variance) || !integers_get(st, out, "out", &t))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = noise_onto(t.data, (size_t)tn_tensor_numel(&t), variance, &err);
    Py_END_ALLOW_THREADS
    if (code != TN_OK)
        return tni_raise(st, &err);
    Py_RETURN_NONE;
}

static PyObject *randomise(PyObject *module, PyObject *args) {
    tni_state *st = PyModule_GetState(module);
    PyObject *layout, *block;
    tn_dp_local p;
    const tn_layout *l;
    tni_block b;
    tn_err err = TN_ERR_INIT;
    tn_code code;

    if (!PyArg_ParseTuple(args, "O!Oddd", st->layout_type, &layout, &block, &p.clip, &p.epsilon, &p.delta))
        return NULL;
    l = &((tni_layout *)(void *)layout)->l;
    if (!tni_block_get(st, block, "block", l->nbytes, true, &b))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = tn_dp_randomise(&p, l, NULL, b.p, &err);
    Py_END_ALLOW_THREADS
    tni_block_release(&b);
    if (code != TN_OK)
        return tni_raise(st, &err);
    Py_RETURN_NONE;
}

static PyObject *adaptive_split(PyObject *module, PyObject *args) {
    tn_dp_adaptive a;
    double noise, multiplier;
    tn_err err = TN_ERR_INIT;

    if (!PyArg_ParseTuple(args, "dddd", &noise, &a.quantile, &a.rate, &a.sigma))
        return NULL;
    if (tn_dp_adaptive_split(&a, noise, &multiplier, &err) != TN_OK)
        return tni_raise(PyModule_GetState(module), &err);
    return PyFloat_FromDouble(multiplier);
}

static PyObject *adaptive_clip(PyObject *module, PyObject *args) {
    tn_dp_adaptive a = {.sigma = 1};
    double clip, share;

    (void)module;
    if (!PyArg_ParseTuple(args, "dddd", &clip, &share, &a.quantile, &a.rate))
        return NULL;
    return PyFloat_FromDouble(tn_dp_adaptive_clip(&a, clip, share));
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS
PyMethodDef tni_privacy_functions[] = {
    {"dp_epsilon", KEYWORDS(epsilon), "dp_epsilon(*, q, sigma, steps, delta, accountant, orders) -> float"},
    {"dp_calibrate", KEYWORDS(calibrate), "dp_calibrate(*, epsilon, q, steps, delta, accountant, orders) -> sigma"},
    {"dp_distributed_epsilon", KEYWORDS(distributed_epsilon), "dp_distributed_epsilon(*, noise, scale, ...) -> float"},
    {"dp_gaussian_sigma", KEYWORDS(gaussian_sigma), "dp_gaussian_sigma(*, epsilon, delta) -> sigma"},
    {"dp_gaussian_epsilon", KEYWORDS(gaussian_epsilon), "dp_gaussian_epsilon(*, sigma, delta) -> epsilon"},
    {"dp_grid", grid, METH_VARARGS, "dp_grid(layout, clip, noise) -> (numbers, width of the grid, sigma in such widths)"},
    {"dp_to_grid", to_grid, METH_VARARGS, "dp_to_grid(layout, block, clip, noise, out) -> whether the norm was within clip"},
    {"dp_from_grid", from_grid, METH_VARARGS, "dp_from_grid(layout, in, factor, block)"},
    {"dp_add_noise", add_noise, METH_VARARGS, "dp_add_noise(out, variance): the discrete Gaussian onto each integer"},
    {"dp_randomise", randomise, METH_VARARGS, "dp_randomise(layout, block, clip, epsilon, delta): local noise, in place"},
    {"dp_adaptive_split", adaptive_split, METH_VARARGS, "dp_adaptive_split(noise, quantile, rate, sigma) -> multiplier"},
    {"dp_adaptive_clip", adaptive_clip, METH_VARARGS, "dp_adaptive_clip(clip, share, quantile, rate) -> clip"},
    {NULL, NULL, 0, NULL},
};

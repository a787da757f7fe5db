/* Privacy accounting: privacy/dp.h for Python. */
#include "python/_tn.h"

#include <stdlib.h>
#include <string.h>

#include "privacy/privacy.h"

/* `orders`: None, or numbers. False with an error set. */
static bool orders_get(PyObject *obj, double **out, size_t *n) {
    PyObject *list;

    *out = NULL;
    *n = 0;
    if (obj == NULL || obj == Py_None)
        return true;
    list = PySequence_List(obj);
    if (list == NULL)
        return false;
    *n = (size_t)PyList_Size(list);
    *out = malloc(*n * sizeof(**out) + 1);
    if (*out == NULL)
        PyErr_NoMemory();
    for (size_t i = 0; i < *n && !PyErr_Occurred(); i++)
        (*out)[i] = PyFloat_AsDouble(PyList_GetItem(list, (Py_ssize_t)i));
    Py_DECREF(list);
    if (PyErr_Occurred()) {
        free(*out);
        *out = NULL;
        return false;
    }
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

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS
PyMethodDef tni_privacy_functions[] = {
    {"dp_epsilon", KEYWORDS(epsilon), "dp_epsilon(*, q, sigma, steps, delta, accountant, orders) -> float"},
    {"dp_calibrate", KEYWORDS(calibrate), "dp_calibrate(*, epsilon, q, steps, delta, accountant, orders) -> sigma"},
    {"dp_distributed_epsilon", KEYWORDS(distributed_epsilon), "dp_distributed_epsilon(*, noise, scale, ...) -> float"},
    {"dp_gaussian_sigma", KEYWORDS(gaussian_sigma), "dp_gaussian_sigma(*, epsilon, delta) -> sigma"},
    {"dp_gaussian_epsilon", KEYWORDS(gaussian_epsilon), "dp_gaussian_epsilon(*, sigma, delta) -> epsilon"},
    {NULL, NULL, 0, NULL},
};

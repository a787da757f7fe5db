/* What the files of the native module share.
 *
 * The module holds no logic: it converts arguments, takes references, releases the interpreter lock, calls one C function and raises what came
 * back. Everything that it keeps lies in the module's state; there are no C globals, and the types are heap types that know their module.
 *
 * Rules. The lock is held whenever a PyObject is touched. Whoever lends tensor memory to C holds a reference to the tensor for as long as C may
 * touch it. Objects remember the process that made them: in a forked child they do nothing, because the library's threads are not there. */
#ifndef TN_PYTHON_TN_H
#define TN_PYTHON_TN_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "kernels/kernels.h"

/* The interpreter keeps functions in void pointers and takes keyword names as writable strings; ISO C converts neither without a detour. */
#define TNI_SLOT(function_or_doc) ((void *)(uintptr_t)(function_or_doc))
#define TNI_FN(type, pointer) ((type)(uintptr_t)(pointer))
#define TNI_NAMES(names) ((char **)(uintptr_t)(names))

typedef struct tni_queue tni_queue; /* finished works whose callbacks wait for a Python thread: _tn_work.c */

typedef struct tni_state {
    PyObject *dtypes;                              /* dict: torch.dtype -> number; NULL until torch is needed */
    PyObject *peer_error, *cancelled, *refused;    /* exception classes of ours */
    PyTypeObject *layout_type, *client_type, *group_type, *work_type;
    PyObject *n_data_ptr, *n_shape, *n_stride, *n_dtype, *n_is_cpu, *n_device, *n_is_conj, *n_is_neg, *n_code; /* interned names */
    tni_queue *queue;
} tni_state;

/* The state behind an instance of one of our types (none of them can be subclassed). */
tni_state *tni_state_of(PyObject *self);

/* ---- Errors (_tn.c) ---- */
PyObject *tni_exception(tni_state *st, const tn_err *err); /* a new exception object with .code; NULL: none could be made */
PyObject *tni_raise(tni_state *st, const tn_err *err);     /* sets it; always NULL */
/* The Python error that is set, taken off and turned into *err: the callbacks' way back into C. */
tn_code tni_err_take(tn_err *err, tn_code code, const char *what);
/* Seconds (float, int or None) to nanoseconds; None gives `none`. False with an error set: not a number, negative or NaN. */
bool tni_seconds(PyObject *obj, int64_t none, int64_t *ns);
/* A dict of name -> tuple of dtype, and so on. */
int tni_add_constants(PyObject *module);

/* ---- Tensors (_tn_tensor.c) ---- */
/* A view of a dense CPU torch.Tensor; `what` names it in the error. The caller holds the tensor while the view lives. */
bool tni_tensor_get(tni_state *st, PyObject *obj, const char *what, tn_tensor *out);
/* A dtype given as torch.dtype or as its number. */
bool tni_dtype_get(tni_state *st, PyObject *obj, tn_dtype *out);

/* Several tensors, with a list that holds them. */
typedef struct tni_tensors {
    size_t n;
    tn_tensor *t;
    PyObject *held; /* a list; may grow by other objects that must live as long */
} tni_tensors;
bool tni_tensors_get(tni_state *st, PyObject *seq, const char *what, tni_tensors *out); /* releasable even on failure */
void tni_tensors_release(tni_tensors *ts);

/* The packed bytes of a model: a contiguous one-dimensional torch.uint8 tensor, or an object with the buffer protocol. */
typedef struct tni_block {
    uint8_t *p;
    size_t n;
    Py_buffer view;
    bool is_view;
    PyObject *held;
} tni_block;
bool tni_block_get(tni_state *st, PyObject *obj, const char *what, size_t nbytes, bool writable, tni_block *out);
void tni_block_release(tni_block *b);

PyObject *tni_reduce(PyObject *module, PyObject *args, PyObject *kwargs);
bool tni_op_get(const char *name, tn_op *out); /* sets an error that lists the names */

/* ---- Types ---- */
extern PyType_Spec tni_layout_spec, tni_client_spec, tni_group_spec, tni_work_spec;

typedef struct tni_layout { /* _tn_layout.c */
    PyObject_HEAD
    tn_layout l;
} tni_layout;
PyObject *tni_layout_wrap(tni_state *st, tn_layout *l); /* takes the contents over, also on failure */
PyObject *tni_shape_tuple(int ndim, const int64_t *shape);
PyObject *tni_safetensors_write(PyObject *module, PyObject *args);
PyObject *tni_safetensors_read(PyObject *module, PyObject *arg);

/* ---- Privacy accounting (_tn_privacy.c) ---- */
extern PyMethodDef tni_privacy_functions[];

/* ---- Works (_tn_work.c) ---- */
struct tn_work;
typedef struct tni_work tni_work;
typedef struct tni_works { /* a ring of works under way, each with a reference: what keeps lent tensors alive */
    tni_work *head;
} tni_works;
/* Wraps nothing yet; `held` (stolen, also on failure) is what must live until the operation is done. */
tni_work *tni_work_make(tni_state *st, PyObject *held);
int *tni_work_source_slot(tni_work *w);                              /* where a receive puts the sender's rank */
void tni_work_begin(tni_work *w, struct tn_work *work, tni_works *in); /* the reference to `work` is handed over */
void tni_works_prune(tni_works *in);  /* lets go of some that are done */
void tni_works_forget(tni_works *in); /* all of them: they are done, or the process is a forked child's */

tni_queue *tni_queue_new(void);
void tni_queue_unref(tni_queue *q);
PyObject *tni_completion_next(PyObject *module, PyObject *arg);

#endif

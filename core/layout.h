/* The layout of a model: its tensors' names, dtypes and shapes, in order, and where each lies in one packed
 * block.
 *
 * A model, an update and a delta are one block of tn_layout.nbytes bytes: the tensors one behind another,
 * in the order of tn_layout_seal without gaps, little-endian, row-major. That block is what travels, what
 * lies in a .safetensors file's data part, and what the kernels run over. Built by tn_layout_add and
 * tn_layout_seal, immutable from then on: share it between threads freely. No function blocks. */
#ifndef TN_CORE_LAYOUT_H
#define TN_CORE_LAYOUT_H

#include "core/cbor.h"
#include "core/tensor.h"

#define TN_LAYOUT_MAX_TENSORS 65536
#define TN_LAYOUT_MAX_NAME 512 /* bytes, without the NUL */
#define TN_LAYOUT_MAX_BYTES (INT64_C(1) << 40)

typedef struct tn_layout_entry {
    char *name;
    tn_dtype dtype;
    int ndim;
    int64_t shape[TN_MAX_DIMS];
    size_t offset, nbytes; /* in the block */
} tn_layout_entry;

typedef struct tn_layout {
    size_t count;
    size_t nbytes; /* of the block */
    tn_layout_entry *entry;
} tn_layout;

/* An empty layout to add to; tn_layout_release frees the contents (safe on a zeroed one). */
TN_API void tn_layout_init(tn_layout *l);
TN_API void tn_layout_release(tn_layout *l);
/* Copies the name. Refuses empty, over-long or non-UTF-8 names, bad shapes and dtypes without a
 * safetensors name (TN_EINVAL) and what goes over the limits above (TN_ETOOBIG). On failure the layout is
 * as before. Duplicate names are found by tn_layout_seal, which also gives the offsets. */
TN_API tn_code tn_layout_add(tn_layout *l, const char *name, tn_dtype dtype, int ndim, const int64_t *shape,
                             tn_err *err);
/* Orders entries by element size (largest first), then by name in byte order, and gives offsets without
 * gaps: every tensor is then aligned to its own element. Two parties with the same set of tensors get the
 * same block whatever order they were added in. TN_EINVAL names a tensor that was added twice. */
TN_API tn_code tn_layout_seal(tn_layout *l, tn_err *err);
/* to is initialised here; on failure it is empty. */
TN_API tn_code tn_layout_copy(tn_layout *to, const tn_layout *from, tn_err *err);
/* NULL when absent. Logarithmic, as the layout is sealed. */
TN_API const tn_layout_entry *tn_layout_find(const tn_layout *l, const char *name);
/* Of two sealed layouts: TN_OK, or TN_ESHAPE naming the first difference: "fc1.weight is float32[10, 128]
 * in <a> and float32[10, 64] in <b>", "fc2.bias is in <a> but not in <b>". Linear. */
TN_API tn_code tn_layout_same(const tn_layout *a, const char *a_is, const tn_layout *b, const char *b_is,
                              tn_err *err);
/* The view of entry i in a block that starts at `block`. */
TN_API tn_tensor tn_layout_tensor(const tn_layout *l, size_t i, void *block);
/* CBOR: an array of [name, dtype number, [shape...]], in any order. decode initialises l, checks
 * everything and seals; on failure (TN_EPROTO, TN_ETOOBIG, TN_ENOMEM) l is empty. */
TN_API void tn_layout_encode(const tn_layout *l, tn_wr *w);
TN_API tn_code tn_layout_decode(tn_layout *l, const tn_cbor *v, tn_err *err);

#endif

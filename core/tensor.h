/* Tensor views over memory that somebody else owns (torch, a mapped file, a caller's array).
 *
 * A tn_tensor is a plain value: copy it freely, nothing to release. It never owns memory. Thread-safe as
 * far as the memory behind it is. */
#ifndef TN_CORE_TENSOR_H
#define TN_CORE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

#define TN_MAX_DIMS 16

/* enum, value, bytes, torch's name, safetensors' name ("" where the format has none).
 * Values are part of the wire protocol and of the Python binding: append, never renumber. */
#define TN_DTYPES(X)                                   \
    X(TN_BOOL, 0, 1, "bool", "BOOL")                   \
    X(TN_U8, 1, 1, "uint8", "U8")                      \
    X(TN_I8, 2, 1, "int8", "I8")                       \
    X(TN_I16, 3, 2, "int16", "I16")                    \
    X(TN_I32, 4, 4, "int32", "I32")                    \
    X(TN_I64, 5, 8, "int64", "I64")                    \
    X(TN_U16, 6, 2, "uint16", "U16")                   \
    X(TN_U32, 7, 4, "uint32", "U32")                   \
    X(TN_U64, 8, 8, "uint64", "U64")                   \
    X(TN_F16, 9, 2, "float16", "F16")                  \
    X(TN_BF16, 10, 2, "bfloat16", "BF16")              \
    X(TN_F32, 11, 4, "float32", "F32")                 \
    X(TN_F64, 12, 8, "float64", "F64")                 \
    X(TN_C64, 13, 8, "complex64", "C64")               \
    X(TN_C128, 14, 16, "complex128", "")               \
    X(TN_F8_E4M3, 15, 1, "float8_e4m3fn", "F8_E4M3")   \
    X(TN_F8_E5M2, 16, 1, "float8_e5m2", "F8_E5M2")     \
    X(TN_F8_E4M3FNUZ, 17, 1, "float8_e4m3fnuz", "")    \
    X(TN_F8_E5M2FNUZ, 18, 1, "float8_e5m2fnuz", "")    \
    X(TN_F8_E8M0, 19, 1, "float8_e8m0fnu", "F8_E8M0")

typedef enum tn_dtype {
#define X(name, value, size, torch, st) name = value,
    TN_DTYPES(X)
#undef X
} tn_dtype;
#define TN_DTYPE_COUNT 20

typedef struct tn_tensor {
    void *data;
    tn_dtype dtype;
    int ndim;
    int64_t shape[TN_MAX_DIMS];
    int64_t stride[TN_MAX_DIMS]; /* in elements; may be 0 (expanded) or negative */
} tn_tensor;

TN_API bool tn_dtype_valid(int dtype);
TN_API size_t tn_dtype_size(tn_dtype dtype);
TN_API const char *tn_dtype_name(tn_dtype dtype);             /* torch's name, without "torch." */
TN_API const char *tn_dtype_safetensors(tn_dtype dtype);      /* "" when the format has none */
TN_API bool tn_dtype_parse(const char *name, tn_dtype *out);  /* either name; false: unknown */
TN_API bool tn_dtype_is_float(tn_dtype dtype);                /* real floating point, float8 included */
TN_API bool tn_dtype_is_complex(tn_dtype dtype);
TN_API bool tn_dtype_is_integer(tn_dtype dtype);              /* bool included */

/* A C-contiguous view. Refuses (TN_EINVAL) bad dtypes, ndim outside 0..TN_MAX_DIMS, negative sizes, and byte
 * counts over INT64_MAX. */
TN_API tn_code tn_tensor_init(tn_tensor *t, void *data, int dtype, int ndim, const int64_t *shape, tn_err *err);
/* The same with strides in elements. */
TN_API tn_code tn_tensor_init_strided(tn_tensor *t, void *data, int dtype, int ndim, const int64_t *shape,
                                      const int64_t *stride, tn_err *err);
/* A one-dimensional contiguous view of n elements. */
TN_API tn_tensor tn_tensor_flat(void *data, tn_dtype dtype, int64_t n);

TN_API int64_t tn_tensor_numel(const tn_tensor *t);  /* 1 for zero dimensions */
TN_API size_t tn_tensor_nbytes(const tn_tensor *t);  /* numel * element size */
TN_API bool tn_tensor_contiguous(const tn_tensor *t);/* row-major without gaps; true for 0 or 1 elements */
/* Elements in row-major order from a view to packed memory and back. The packed side has tn_tensor_nbytes bytes
 * and does not overlap the view. Writing into an expanded (stride 0) view leaves the last element written. */
TN_API void tn_tensor_pack(const tn_tensor *t, void *packed);
TN_API void tn_tensor_unpack(const tn_tensor *t, const void *packed);
/* "float32[3, 4]" into buf; always terminated; returns buf. */
TN_API char *tn_tensor_describe(const tn_tensor *t, char *buf, size_t cap);

#endif

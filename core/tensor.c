/* Tensor views: facts about dtypes, and copies between strided and packed memory. */
#include "core/tensor.h"

#include <stdio.h>
#include <string.h>

static const struct {
    size_t size;
    const char *torch_name;
    const char *st_name;
} dtypes[TN_DTYPE_COUNT] = {
#define X(name, value, size, torch, st) [value] = {size, torch, st},
    TN_DTYPES(X)
#undef X
};

bool tn_dtype_valid(int dtype) { return dtype >= 0 && dtype < TN_DTYPE_COUNT; }
size_t tn_dtype_size(tn_dtype dtype) { return dtypes[dtype].size; }
const char *tn_dtype_name(tn_dtype dtype) { return dtypes[dtype].torch_name; }
const char *tn_dtype_safetensors(tn_dtype dtype) { return dtypes[dtype].st_name; }

bool tn_dtype_parse(const char *name, tn_dtype *out) {
    if (name[0] == '\0')
        return false;
    for (int i = 0; i < TN_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].torch_name) == 0 || strcmp(name, dtypes[i].st_name) == 0) {
            *out = (tn_dtype)i;
            return true;
        }
    }
    return false;
}

bool tn_dtype_is_complex(tn_dtype d) { return d == TN_C64 || d == TN_C128; }
bool tn_dtype_is_integer(tn_dtype d) { return d <= TN_U64; }
bool tn_dtype_is_float(tn_dtype d) { return !tn_dtype_is_integer(d) && !tn_dtype_is_complex(d); }

tn_code tn_tensor_init_strided(tn_tensor *t, void *data, int dtype, int ndim, const int64_t *shape,
                               const int64_t *stride, tn_err *err) {
    int64_t bytes;

    memset(t, 0, sizeof(*t));
    if (!tn_dtype_valid(dtype))
        return tn_fail(err, TN_EINVAL, "unknown dtype number %d", dtype);
    if (ndim < 0 || ndim > TN_MAX_DIMS)
        return tn_fail(err, TN_EINVAL, "a tensor of %d dimensions; 0 to %d are supported", ndim, TN_MAX_DIMS);
    t->data = data;
    t->dtype = (tn_dtype)dtype;
    t->ndim = ndim;
    bytes = (int64_t)tn_dtype_size(t->dtype);
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return tn_fail(err, TN_EINVAL, "dimension %d has the negative size %lld", i, (long long)shape[i]);
        if (__builtin_mul_overflow(bytes, shape[i] == 0 ? 1 : shape[i], &bytes))
            return tn_fail(err, TN_EINVAL, "a tensor of more than 2^63 bytes");
        t->shape[i] = shape[i];
    }
    if (stride != NULL) {
        for (int i = 0; i < ndim; i++)
            t->stride[i] = stride[i];
    } else {
        int64_t step = 1;

        for (int i = ndim - 1; i >= 0; i--) {
            t->stride[i] = step;
            step *= shape[i] == 0 ? 1 : shape[i];
        }
    }
    return TN_OK;
}

tn_code tn_tensor_init(tn_tensor *t, void *data, int dtype, int ndim, const int64_t *shape, tn_err *err) {
    return tn_tensor_init_strided(t, data, dtype, ndim, shape, NULL, err);
}

tn_tensor tn_tensor_flat(void *data, tn_dtype dtype, int64_t n) {
    tn_tensor t = {.data = data, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1}};

    return t;
}

int64_t tn_tensor_numel(const tn_tensor *t) {
    int64_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= t->shape[i];
    return n;
}

size_t tn_tensor_nbytes(const tn_tensor *t) { return (size_t)tn_tensor_numel(t) * tn_dtype_size(t->dtype); }

bool tn_tensor_contiguous(const tn_tensor *t) {
    int64_t step = 1;

    if (tn_tensor_numel(t) <= 1)
        return true;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != step)
            return false;
        step *= t->shape[i];
    }
    return true;
}

/* Copies rows: the innermost dimension in one loop, the others by an odometer. */
static void copy_strided(const tn_tensor *t, uint8_t *packed, bool to_packed) {
    size_t es = tn_dtype_size(t->dtype);
    int last = t->ndim - 1;
    int64_t inner = t->ndim == 0 ? 1 : t->shape[last];
    int64_t inner_stride = t->ndim == 0 ? 1 : t->stride[last];
    int64_t rows = inner == 0 ? 0 : tn_tensor_numel(t) / inner;
    int64_t index[TN_MAX_DIMS] = {0};

    for (int64_t r = 0; r < rows; r++) {
        int64_t offset = 0;
        uint8_t *p;

        for (int i = 0; i < last; i++)
            offset += index[i] * t->stride[i];
        p = (uint8_t *)t->data + offset * (int64_t)es;
        if (inner_stride == 1) {
            size_t n = (size_t)inner * es;

            memcpy(to_packed ? packed : p, to_packed ? p : packed, n);
            packed += n;
        } else {
            for (int64_t j = 0; j < inner; j++) {
                memcpy(to_packed ? packed : p, to_packed ? p : packed, es);
                packed += es;
                p += inner_stride * (int64_t)es;
            }
        }
        for (int i = last - 1; i >= 0; i--) {
            if (++index[i] < t->shape[i])
                break;
            index[i] = 0;
        }
    }
}

void tn_tensor_pack(const tn_tensor *t, void *packed) {
    if (tn_tensor_numel(t) == 0)
        return;
    if (tn_tensor_contiguous(t))
        memcpy(packed, t->data, tn_tensor_nbytes(t));
    else
        copy_strided(t, packed, true);
}

void tn_tensor_unpack(const tn_tensor *t, const void *packed) {
    if (tn_tensor_numel(t) == 0)
        return;
    if (tn_tensor_contiguous(t))
        memcpy(t->data, packed, tn_tensor_nbytes(t));
    else /* read only in this direction */
        copy_strided(t, (uint8_t *)(uintptr_t)packed, false);
}

char *tn_tensor_describe(const tn_tensor *t, char *buf, size_t cap) {
    size_t used = (size_t)snprintf(buf, cap, "%s[", tn_dtype_name(t->dtype));

    for (int i = 0; i < t->ndim && used < cap; i++)
        used += (size_t)snprintf(buf + used, cap - used, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (used < cap)
        snprintf(buf + used, cap - used, "]");
    return buf;
}

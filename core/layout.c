/* Layouts: a sorted table of tensors.
 *
 * The order (element size, then name) lets a name be found by one binary search per element size, and lets two
 * layouts be compared in step. */
#include "core/layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

/* How names appear in messages: enough to recognise, and room for the rest of the sentence. */
#define NAME "%.120s"

void tn_layout_init(tn_layout *l) { memset(l, 0, sizeof(*l)); }

void tn_layout_release(tn_layout *l) {
    for (size_t i = 0; i < l->count; i++)
        free(l->entry[i].name);
    free(l->entry);
    memset(l, 0, sizeof(*l));
}

/* Room for one more entry. The capacity is not stored: it is 8, then the powers of two. */
static tn_code grow(tn_layout *l, tn_err *err) {
    size_t n = l->count;
    bool full = n == 0 || (n >= 8 && (n & (n - 1)) == 0);
    tn_layout_entry *entry;

    if (!full)
        return TN_OK;
    entry = realloc(l->entry, (n == 0 ? 8 : n * 2) * sizeof(*entry));
    if (entry == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory for a layout of %zu tensors", n + 1);
    l->entry = entry;
    return TN_OK;
}

static tn_code check_name(const char *name, size_t n, tn_err *err) {
    if (n == 0)
        return tn_fail(err, TN_EINVAL, "a tensor with an empty name");
    if (n > TN_LAYOUT_MAX_NAME)
        return tn_fail(err, TN_EINVAL, "the tensor name " NAME "... has %zu bytes; at most %d are allowed",
                       name, n, TN_LAYOUT_MAX_NAME);
    if (!tni_utf8_valid(name, n))
        return tn_fail(err, TN_EINVAL, "a tensor name that is not UTF-8");
    return TN_OK;
}

tn_code tn_layout_add(tn_layout *l, const char *name, tn_dtype dtype, int ndim, const int64_t *shape,
                      tn_err *err) {
    size_t n = strlen(name), nbytes;
    tn_tensor t;
    tn_layout_entry *e;
    tn_code code;

    if ((code = check_name(name, n, err)) != TN_OK)
        return code;
    if (l->count == TN_LAYOUT_MAX_TENSORS)
        return tn_fail(err, TN_ETOOBIG, "tensor " NAME ": a model has at most %d tensors", name,
                       TN_LAYOUT_MAX_TENSORS);
    if (tn_tensor_init(&t, NULL, (int)dtype, ndim, shape, err) != TN_OK) {
        if (err != NULL)
            tn_ctx(err, "tensor " NAME, name);
        return TN_EINVAL;
    }
    if (tn_dtype_safetensors(dtype)[0] == '\0')
        return tn_fail(err, TN_EINVAL, "tensor " NAME " is %s, which .safetensors files cannot hold", name,
                       tn_dtype_name(dtype));
    nbytes = tn_tensor_nbytes(&t);
    if (nbytes > (size_t)TN_LAYOUT_MAX_BYTES - l->nbytes)
        return tn_fail(err, TN_ETOOBIG, "tensor " NAME ": a model has at most 2^40 bytes", name);
    if ((code = grow(l, err)) != TN_OK)
        return code;
    e = &l->entry[l->count];
    memset(e, 0, sizeof(*e));
    e->name = strdup(name);
    if (e->name == NULL)
        return tn_fail(err, TN_ENOMEM, "out of memory for the tensor name " NAME, name);
    e->dtype = dtype;
    e->ndim = ndim;
    memcpy(e->shape, t.shape, sizeof(e->shape));
    e->nbytes = nbytes;
    l->count++;
    l->nbytes += nbytes;
    return TN_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const tn_layout_entry *)a)->name, ((const tn_layout_entry *)b)->name);
}

static int by_size_and_name(const void *a, const void *b) {
    size_t sa = tn_dtype_size(((const tn_layout_entry *)a)->dtype);
    size_t sb = tn_dtype_size(((const tn_layout_entry *)b)->dtype);

    return sa != sb ? (sa < sb ? 1 : -1) : by_name(a, b);
}

tn_code tn_layout_seal(tn_layout *l, tn_err *err) {
    size_t offset = 0;

    if (l->count == 0)
        return TN_OK;
    qsort(l->entry, l->count, sizeof(*l->entry), by_name);
    for (size_t i = 1; i < l->count; i++) {
        if (by_name(&l->entry[i - 1], &l->entry[i]) == 0)
            return tn_fail(err, TN_EINVAL, "tensor " NAME " is there twice", l->entry[i].name);
    }
    qsort(l->entry, l->count, sizeof(*l->entry), by_size_and_name);
    for (size_t i = 0; i < l->count; i++) {
        l->entry[i].offset = offset;
        offset += l->entry[i].nbytes;
    }
    assert(offset == l->nbytes);
    return TN_OK;
}

tn_code tn_layout_copy(tn_layout *to, const tn_layout *from, tn_err *err) {
    tn_code code = TN_OK;

    tn_layout_init(to);
    for (size_t i = 0; i < from->count && code == TN_OK; i++) {
        const tn_layout_entry *e = &from->entry[i];

        code = tn_layout_add(to, e->name, e->dtype, e->ndim, e->shape, err);
    }
    if (code == TN_OK)
        code = tn_layout_seal(to, err);
    if (code != TN_OK)
        tn_layout_release(to);
    return code;
}

const tn_layout_entry *tn_layout_find(const tn_layout *l, const char *name) {
    static const tn_dtype one_of_each_size[] = {TN_F64, TN_F32, TN_F16, TN_U8};
    const tn_layout_entry *found = NULL;
    /* Read only: bsearch hands it to the comparison, which takes it as const. */
    tn_layout_entry key = {.name = (char *)(uintptr_t)name};

    for (size_t i = 0; i < sizeof(one_of_each_size) / sizeof(one_of_each_size[0]) && found == NULL; i++) {
        key.dtype = one_of_each_size[i];
        if (l->count != 0)
            found = bsearch(&key, l->entry, l->count, sizeof(key), by_size_and_name);
    }
    return found;
}

static bool same_kind(const tn_layout_entry *a, const tn_layout_entry *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
}

static tn_tensor view(const tn_layout_entry *e, void *data) {
    tn_tensor t;
    tn_code code = tn_tensor_init(&t, data, (int)e->dtype, e->ndim, e->shape, NULL);

    assert(code == TN_OK); /* tn_layout_add has checked it */
    (void)code;
    return t;
}

/* e is at fault in `here`: absent from the other layout, or of another kind there. False: it is the same. */
static bool differs(const tn_layout_entry *e, const char *here, const tn_layout *other, const char *there,
                    tn_err *err) {
    const tn_layout_entry *o = tn_layout_find(other, e->name);
    tn_tensor mine = view(e, NULL), theirs;
    char a[128], b[128];

    if (o == NULL) {
        tn_fail(err, TN_ESHAPE, NAME " is in %s but not in %s", e->name, here, there);
        return true;
    }
    if (same_kind(e, o))
        return false;
    theirs = view(o, NULL);
    tn_fail(err, TN_ESHAPE, NAME " is %s in %s and %s in %s", e->name, tn_tensor_describe(&mine, a, sizeof(a)),
            here, tn_tensor_describe(&theirs, b, sizeof(b)), there);
    return true;
}

tn_code tn_layout_same(const tn_layout *a, const char *a_is, const tn_layout *b, const char *b_is,
                       tn_err *err) {
    size_t i = 0;
    bool told = false;

    while (i < a->count && i < b->count && by_name(&a->entry[i], &b->entry[i]) == 0 &&
           same_kind(&a->entry[i], &b->entry[i]))
        i++;
    if (i == a->count && i == b->count)
        return TN_OK;
    /* What stands first here in one of the two is absent or different in the other: were both the same
     * there, each would have to come before the other. */
    if (i < a->count)
        told = differs(&a->entry[i], a_is, b, b_is, err);
    if (!told && i < b->count)
        told = differs(&b->entry[i], b_is, a, a_is, err);
    assert(told);
    return TN_ESHAPE;
}

tn_tensor tn_layout_tensor(const tn_layout *l, size_t i, void *block) {
    assert(i < l->count);
    return view(&l->entry[i], (uint8_t *)block + l->entry[i].offset);
}

void tn_layout_encode(const tn_layout *l, tn_wr *w) {
    tn_cbor_put_array(w, l->count);
    for (size_t i = 0; i < l->count; i++) {
        const tn_layout_entry *e = &l->entry[i];

        tn_cbor_put_array(w, 3);
        tn_cbor_put_text(w, e->name);
        tn_cbor_put_u64(w, (uint64_t)e->dtype);
        tn_cbor_put_array(w, (size_t)e->ndim);
        for (int d = 0; d < e->ndim; d++)
            tn_cbor_put_u64(w, (uint64_t)e->shape[d]);
    }
}

/* One [name, dtype number, [shape...]]. */
static tn_code decode_entry(tn_layout *l, const tn_cbor *v, tn_err *err) {
    tn_cbor rest = *v, name, dtype, shape, dim;
    char text[TN_LAYOUT_MAX_NAME + 1];
    int64_t sizes[TN_MAX_DIMS];
    int ndim = 0;

    if (v->kind != TN_CBOR_ARRAY || v->u != 3 || !tn_cbor_next(&rest, NULL, &name) ||
        !tn_cbor_next(&rest, NULL, &dtype) || !tn_cbor_next(&rest, NULL, &shape) || name.kind != TN_CBOR_TEXT ||
        dtype.kind != TN_CBOR_UINT || shape.kind != TN_CBOR_ARRAY)
        return tn_fail(err, TN_EPROTO, "not a [name, dtype, shape] array");
    if (name.n > TN_LAYOUT_MAX_NAME || memchr(name.p, '\0', name.n) != NULL)
        return tn_fail(err, TN_EPROTO, "a name over %d bytes or with a NUL byte in it", TN_LAYOUT_MAX_NAME);
    memcpy(text, name.p, name.n);
    text[name.n] = '\0';
    if (dtype.u >= TN_DTYPE_COUNT)
        return tn_fail(err, TN_EPROTO, "tensor " NAME " has the unknown dtype number %llu", text,
                       (unsigned long long)dtype.u);
    if (shape.u > TN_MAX_DIMS)
        return tn_fail(err, TN_EPROTO, "tensor " NAME " has more than %d dimensions", text, TN_MAX_DIMS);
    while (tn_cbor_next(&shape, NULL, &dim)) {
        if (dim.kind != TN_CBOR_UINT || dim.u > INT64_MAX)
            return tn_fail(err, TN_EPROTO, "tensor " NAME ": dimension %d is not a size", text, ndim);
        sizes[ndim++] = (int64_t)dim.u;
    }
    return tn_layout_add(l, text, (tn_dtype)dtype.u, ndim, sizes, err);
}

/* What tn_layout_add calls a wrong argument is, from a peer, a malformed message. */
static tn_code as_peers_fault(tn_code code, tn_err *err) {
    if (code != TN_EINVAL)
        return code;
    if (err != NULL)
        err->code = TN_EPROTO;
    return TN_EPROTO;
}

tn_code tn_layout_decode(tn_layout *l, const tn_cbor *v, tn_err *err) {
    tn_cbor rest = *v, item;
    tn_code code = TN_OK;

    tn_layout_init(l);
    if (v->kind != TN_CBOR_ARRAY)
        return tn_fail(err, TN_EPROTO, "a layout that is not an array");
    if (v->u > TN_LAYOUT_MAX_TENSORS)
        return tn_fail(err, TN_ETOOBIG, "a layout of %llu tensors; at most %d are allowed",
                       (unsigned long long)v->u, TN_LAYOUT_MAX_TENSORS);
    while (code == TN_OK && tn_cbor_next(&rest, NULL, &item)) {
        code = decode_entry(l, &item, err);
        if (code != TN_OK && err != NULL)
            tn_ctx(err, "layout entry %zu", l->count);
    }
    if (code == TN_OK)
        code = tn_layout_seal(l, err);
    if (code != TN_OK)
        tn_layout_release(l);
    return as_peers_fault(code, err);
}

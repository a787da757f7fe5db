/* Updates: what one must be before it counts, and how a delta is made and applied. The rule for each kind of
 * dtype is in docs/fed.md; the arithmetic is the kernels'. */
#include <inttypes.h>
#include <string.h>

#include "fed/internal.h"
#include "kernels/kernels.h"

#define SCRATCH_BYTES 8192

bool tni_dtype_is_fixed(tn_dtype d) { return d == TN_BOOL || d == TN_F8_E8M0; }

size_t tni_layout_run(const tn_layout *l, size_t i, size_t *next) {
    size_t bytes = 0;
    tn_dtype dtype = l->entry[i].dtype;

    for (; i < l->count && l->entry[i].dtype == dtype; i++)
        bytes += l->entry[i].nbytes;
    *next = i;
    return bytes;
}

const tn_layout_entry *tni_layout_at(const tn_layout *l, size_t at, size_t *index) {
    size_t lo = 0, hi = l->count;

    /* The last entry that starts at or before `at`: an empty one never is, the next starts where it does. */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;

        if (l->entry[mid].offset <= at)
            lo = mid;
        else
            hi = mid;
    }
    *index = (at - l->entry[lo].offset) / tn_dtype_size(l->entry[lo].dtype);
    return &l->entry[lo];
}

/* ---- Checking ---- */

tn_code tni_examples_check(const tn_update *u, tn_err *err) {
    if (u->examples == 0)
        return tn_fail(err, TN_EINVAL, "client %s: an update with 0 examples has no weight; at least 1 is "
                       "needed", u->client);
    if (u->examples > TNI_EXAMPLES_MAX)
        return tn_fail(err, TN_EINVAL, "client %s: an update with %" PRIu64 " examples; at most 2^40 are "
                       "allowed", u->client,
                       u->examples);
    return TN_OK;
}

static size_t first_nonzero(const uint8_t *p, size_t n) {
    size_t i = 0;

    while (i < n && p[i] == 0)
        i++;
    return i;
}

/* One run of a dtype; `at` is its first byte in the block. */
static tn_code check_run(const tn_layout *l, const tn_update *u, tn_dtype dtype, size_t at, size_t bytes,
                         tn_err *err) {
    const uint8_t *p = (const uint8_t *)u->block + at;
    size_t size = tn_dtype_size(dtype), n = bytes / size, bad = n, index;
    bool fixed = tni_dtype_is_fixed(dtype);
    const tn_layout_entry *e;

    if (fixed)
        bad = first_nonzero(p, n);
    else if (tn_dtype_is_float(dtype) || tn_dtype_is_complex(dtype))
        bad = tn_k_first_nonfinite(dtype, p, n);
    if (bad == n)
        return TN_OK;
    e = tni_layout_at(l, at + bad * size, &index);
    if (fixed)
        return tn_fail(err, TN_EINVAL, "client %s: the update changes %s[%zu], and a tensor of %s is never "
                       "changed", u->client,
                       e->name, index, tn_dtype_name(dtype));
    return tn_fail(err, TN_ENONFINITE, "client %s: the update has NaN or Inf in %s (%s) at element %zu",
                   u->client, e->name,
                   tn_dtype_name(dtype), index);
}

tn_code tn_update_check(const tn_layout *l, const tn_update *u, tn_err *err) {
    tn_code code = tni_examples_check(u, err);
    size_t next;

    for (size_t i = 0; i < l->count && code == TN_OK; i = next) {
        size_t bytes = tni_layout_run(l, i, &next);

        code = check_run(l, u, l->entry[i].dtype, l->entry[i].offset, bytes, err);
    }
    return code;
}

/* ---- Deltas ---- */

/* XOR is its own inverse, so it makes and applies. */
static void xor_bytes(void *dst, const void *a, const void *b, size_t n) {
    const void *src[2] = {a, b};

    if (n != 0)
        tn_k_reduce(TN_BXOR, TN_U8, dst, src, NULL, 2, n);
}

/* Inf - Inf is NaN: where nothing changed, the delta is 0 whatever the value. */
static void clear_unchanged(tn_dtype dtype, uint8_t *delta, const uint8_t *local, const uint8_t *base,
                            size_t n) {
    size_t size = tn_dtype_size(dtype);

    for (size_t i = 0; (i += tn_k_first_nonfinite(dtype, delta + i * size, n - i)) < n; i++) {
        if (memcmp(local + i * size, base + i * size, size) == 0)
            memset(delta + i * size, 0, size);
    }
}

/* Through a small buffer, because delta may be local or base and both are needed after the subtraction. */
static void make_floats(tn_dtype dtype, uint8_t *delta, const uint8_t *local, const uint8_t *base, size_t n) {
    _Alignas(16) uint8_t scratch[SCRATCH_BYTES];
    size_t size = tn_dtype_size(dtype), block = SCRATCH_BYTES / size;

    for (size_t done = 0; done < n; done += block) {
        size_t some = n - done < block ? n - done : block, at = done * size;

        tn_k_sub(dtype, scratch, local + at, base + at, some);
        clear_unchanged(dtype, scratch, local + at, base + at, some);
        memcpy(delta + at, scratch, some * size);
    }
}

void tn_delta_make(const tn_layout *l, const void *local, const void *base, void *delta) {
    size_t next;

    for (size_t i = 0; i < l->count; i = next) {
        size_t bytes = tni_layout_run(l, i, &next), at = l->entry[i].offset;
        tn_dtype dtype = l->entry[i].dtype;
        const uint8_t *x = (const uint8_t *)local + at, *y = (const uint8_t *)base + at;
        uint8_t *d = (uint8_t *)delta + at;

        if (tni_dtype_is_fixed(dtype))
            xor_bytes(d, x, y, bytes);
        else if (tn_dtype_is_integer(dtype))
            tn_k_sub(dtype, d, x, y, bytes / tn_dtype_size(dtype));
        else
            make_floats(dtype, d, x, y, bytes / tn_dtype_size(dtype));
    }
}

void tn_delta_apply(const tn_layout *l, void *model, const void *delta) {
    size_t next;

    for (size_t i = 0; i < l->count; i = next) {
        size_t bytes = tni_layout_run(l, i, &next), at = l->entry[i].offset;
        tn_dtype dtype = l->entry[i].dtype;
        uint8_t *m = (uint8_t *)model + at;
        const uint8_t *d = (const uint8_t *)delta + at;

        if (tni_dtype_is_fixed(dtype))
            xor_bytes(m, m, d, bytes);
        else
            tn_k_add(dtype, m, m, d, bytes / tn_dtype_size(dtype));
    }
}

/* FedAvg: the example-weighted mean of the updates (McMahan et al., "Communication-Efficient Learning of
 * Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1). With deltas against the round's model
 * w,
 *     w + sum_k (n_k / n) d_k  =  sum_k (n_k / n) w_k,
 * the mean of the clients' models. Integers move by the largest delta, bool and float8_e8m0fnu stay.
 *
 * The next model is built beside the old one, a block at a time, and moved over it when all of it is sound. */
#include <stdlib.h>
#include <string.h>

#include "fed/internal.h"
#include "kernels/kernels.h"

#define BLOCK_ELEMENTS ((size_t)64 << 10) /* the sum is added and checked while it is in the cache */

typedef struct job {
    const tn_layout *l;
    const tn_update *u;
    size_t n;
    const uint8_t *model;
    uint8_t *next;
    const void **src; /* n */
    double *weight;   /* n */
} job;

/* A sum of finite values may leave the range of its dtype. Where the model itself is Inf (masks kept as
 * buffers) it may stay so. */
static tn_code refuse_overflow(const job *j, tn_dtype dtype, size_t at, size_t n, tn_err *err) {
    size_t size = tn_dtype_size(dtype), index;
    const tn_layout_entry *e;

    for (size_t i = 0; (i += tn_k_first_nonfinite(dtype, j->next + at + i * size, n - i)) < n; i++) {
        if (tn_k_first_nonfinite(dtype, j->model + at + i * size, 1) == 0)
            continue;
        e = tni_layout_at(j->l, at + i * size, &index);
        return tn_fail(err, TN_ENONFINITE, "the aggregate leaves the range of %s in %s at element %zu: the "
                       "training diverges; a "
                       "smaller learning rate helps", tn_dtype_name(dtype), e->name, index);
    }
    return TN_OK;
}

static tn_code fold_block(const job *j, tn_dtype dtype, size_t at, size_t n, tn_err *err) {
    bool integer = tn_dtype_is_integer(dtype);

    for (size_t k = 0; k < j->n; k++)
        j->src[k] = (const uint8_t *)j->u[k].block + at;
    tn_k_reduce(integer ? TN_MAX : TN_WMEAN, dtype, j->next + at, j->src, j->weight, j->n, n);
    tn_k_add(dtype, j->next + at, j->model + at, j->next + at, n);
    return integer ? TN_OK : refuse_overflow(j, dtype, at, n, err);
}

static tn_code fold_run(const job *j, tn_dtype dtype, size_t at, size_t bytes, tn_err *err) {
    size_t size = tn_dtype_size(dtype), n = bytes / size;
    tn_code code = TN_OK;

    if (tni_dtype_is_fixed(dtype)) {
        memcpy(j->next + at, j->model + at, bytes);
        return TN_OK;
    }
    for (size_t done = 0; done < n && code == TN_OK; done += BLOCK_ELEMENTS)
        code = fold_block(j, dtype, at + done * size, n - done < BLOCK_ELEMENTS ? n - done : BLOCK_ELEMENTS,
                          err);
    return code;
}

static tn_code apply(const tn_layout *l, const tn_update *u, size_t n, void *model, tn_err *err) {
    job j = {.l = l, .u = u, .n = n, .model = model};
    tn_code code = TN_OK;
    size_t next;

    j.next = malloc(l->nbytes + 1);
    j.src = malloc(n * sizeof(*j.src));
    j.weight = malloc(n * sizeof(*j.weight));
    if (j.next == NULL || j.src == NULL || j.weight == NULL) {
        code = tn_fail(err, TN_ENOMEM, "no memory for the next model (%zu bytes)", l->nbytes);
        goto out;
    }
    for (size_t k = 0; k < n; k++)
        j.weight[k] = (double)u[k].examples; /* exact: at most 2^40 */
    for (size_t i = 0; i < l->count && code == TN_OK; i = next) {
        size_t bytes = tni_layout_run(l, i, &next);

        code = fold_run(&j, l->entry[i].dtype, l->entry[i].offset, bytes, err);
    }
    if (code == TN_OK)
        memcpy(model, j.next, l->nbytes);
out:
    free(j.weight);
    free(j.src);
    free(j.next);
    return code;
}

const tn_agg_ops tni_agg_fedavg = {
    .name = "fedavg",
    .help = "example-weighted mean of the updates (McMahan et al. 2017, Algorithm 1)",
    .caps = TN_AGG_LINEAR,
    .apply = apply,
};

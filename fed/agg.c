/* The aggregators there are, and what all of them share: a fixed order of the updates. */
#include <stdlib.h>
#include <string.h>

#include "fed/internal.h"

static const tn_agg_ops *const all[] = {
    &tni_agg_fedavg,
};
#define COUNT (sizeof(all) / sizeof(all[0]))

const tn_agg_ops *const *tn_agg_all(size_t *n) {
    *n = COUNT;
    return all;
}

const tn_agg_ops *tn_agg_find(const char *name) {
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    }
    return NULL;
}

static int by_client(const void *a, const void *b) {
    return strcmp(((const tn_update *)a)->client, ((const tn_update *)b)->client);
}

tn_code tn_agg_run(const tn_agg_ops *agg, const tn_layout *l, tn_update *u, size_t n, void *model,
                   tn_err *err) {
    tn_code code = TN_OK;

    if (n == 0)
        return tn_fail(err, TN_EINVAL, "%s: there is no update to aggregate", agg->name);
    for (size_t i = 0; i < n && code == TN_OK; i++)
        code = tni_examples_check(&u[i], err);
    if (code != TN_OK)
        return code;
    qsort(u, n, sizeof(*u), by_client);
    for (size_t i = 1; i < n; i++) {
        if (by_client(&u[i - 1], &u[i]) == 0)
            return tn_fail(err, TN_EINVAL, "%s: client %s has two updates in one round", agg->name,
                           u[i].client);
    }
    return agg->apply(l, u, n, model, err);
}

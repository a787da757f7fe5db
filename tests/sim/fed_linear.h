/* What the federation of the tests learns: linear regression by plain SGD on seeded, non-IID shards. Used by the
 * client programs and, in one process, by the test that computes what should come out. */
#ifndef TN_TESTS_FED_LINEAR_H
#define TN_TESTS_FED_LINEAR_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/layout.h"
#include "core/random.h"

#define FEATURES 8
#define EXAMPLES_OF(shard) (20 + 10 * (uint64_t)(shard)) /* different weights */
#define LEARNING_RATE 0.05f

/* weight, bias, and `pad` more numbers that make the model as large as a test wants it. */
static inline tn_code linear_layout(tn_layout *l, int64_t pad, tn_err *err) {
    int64_t shape[1] = {FEATURES};
    tn_code code;

    tn_layout_init(l);
    code = tn_layout_add(l, "weight", TN_F32, 1, shape, err);
    shape[0] = 1;
    if (code == TN_OK)
        code = tn_layout_add(l, "bias", TN_F32, 1, shape, err);
    shape[0] = pad;
    if (code == TN_OK && pad > 0)
        code = tn_layout_add(l, "pad", TN_F32, 1, shape, err);
    return code == TN_OK ? tn_layout_seal(l, err) : code;
}

static inline float *linear_tensor(const tn_layout *l, void *block, const char *name) {
    const tn_layout_entry *e = tn_layout_find(l, name);

    return e != NULL ? (float *)(void *)((uint8_t *)block + e->offset) : NULL;
}

/* One epoch of SGD, an example at a time, on the shard's data; model is changed in place. Returns the mean loss. Each
 * shard has features from another region and a slope of its own. */
static inline double linear_train(const tn_layout *l, void *model, unsigned shard, uint64_t round) {
    tn_rng rng = tn_rng_seed(1000 + shard);
    float *w = linear_tensor(l, model, "weight"), *b = linear_tensor(l, model, "bias"), *pad = linear_tensor(l, model, "pad");
    double loss = 0;

    for (uint64_t i = 0; i < EXAMPLES_OF(shard); i++) {
        float x[FEATURES], y = 0.5f * (float)shard, out = b[0], gradient;

        for (int k = 0; k < FEATURES; k++) {
            x[k] = (float)(tn_rng_unit(&rng) - 0.5) + 0.1f * (float)shard;
            y += x[k] * (float)(k - 3);
            out += w[k] * x[k];
        }
        gradient = out - y;
        loss += (double)gradient * (double)gradient;
        for (int k = 0; k < FEATURES; k++)
            w[k] -= LEARNING_RATE * gradient * x[k];
        b[0] -= LEARNING_RATE * gradient;
    }
    if (pad != NULL) {
        const tn_layout_entry *e = tn_layout_find(l, "pad");

        for (int64_t i = 0; i < e->shape[0]; i++)
            pad[i] += (float)((i * 7 + (int64_t)shard + (int64_t)round) % 13) * 0.125f;
    }
    return loss / (double)EXAMPLES_OF(shard);
}

#endif

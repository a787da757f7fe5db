/* Rules that hold for every store of ours. */
#include "dist/store.h"

#include <string.h>

#include "core/wire.h"

tn_code tni_store_check(const char *key, size_t value_bytes, tn_err *err) {
    size_t n = key != NULL ? strnlen(key, TNI_STORE_KEY_MAX + 1) : 0;

    if (n < 1 || n > TNI_STORE_KEY_MAX)
        return tn_fail(err, TN_EINVAL, "a key of a store has 1 to %d bytes", TNI_STORE_KEY_MAX);
    if (value_bytes > TNI_STORE_VALUE_MAX)
        return tn_fail(err, TN_ETOOBIG, "the value of key '%s' has %zu bytes; %zu is the most", key,
                       value_bytes, TNI_STORE_VALUE_MAX);
    return TN_OK;
}

tn_code tni_store_timeout(const char *key, int64_t waited_ns, tn_err *err) {
    return tn_fail(err, TN_ETIMEDOUT, "key '%s' was not set within %.3f s", key, (double)waited_ns / 1e9);
}

tn_code tni_store_add(const char *key, const uint8_t *old, size_t n, int64_t delta, uint8_t bytes[8],
                      int64_t *now, tn_err *err) {
    tn_wr w = tn_wr_fixed(bytes, 8);
    int64_t value = 0;

    if (old != NULL) {
        tn_rd r = tn_rd_init(old, n);

        value = (int64_t)tn_rd_u64(&r);
        if (tn_rd_end(&r) != TN_OK)
            return tn_fail(err, TN_EINVAL, "key '%s' holds %zu bytes that are not a counter", key, n);
    }
    if (__builtin_add_overflow(value, delta, &value))
        return tn_fail(err, TN_EINVAL, "counter '%s' would overflow", key);
    tn_wr_u64(&w, (uint64_t)value);
    *now = value;
    return TN_OK;
}

void tn_store_release(tn_store *s) {
    if (s->release != NULL)
        s->release(s->arg);
    *s = (tn_store){0};
}

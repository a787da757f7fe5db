/* What the two stores share: the rules for keys and counters. Private to dist. */
#ifndef TN_DIST_STORE_H
#define TN_DIST_STORE_H

#include "dist/dist.h"

#define TNI_STORE_KEY_MAX 1024
#define TNI_STORE_VALUE_MAX ((size_t)16 << 20)

/* A key of 1..TNI_STORE_KEY_MAX bytes and a value that is not too large. */
tn_code tni_store_check(const char *key, size_t value_bytes, tn_err *err);
tn_code tni_store_timeout(const char *key, int64_t waited_ns, tn_err *err);
/* Counters are values of 8 little-endian bytes; `old` NULL counts as 0. */
tn_code tni_store_add(const char *key, const uint8_t *old, size_t n, int64_t delta, uint8_t bytes[8],
                      int64_t *now, tn_err *err);

#endif

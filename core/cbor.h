/* Metadata on the wire: CBOR (RFC 8949) by libcbor's streaming decoder and encoders, behind one
 * bounds-checked layer.
 *
 * The subset: unsigned and negative integers, float64, booleans, text and byte strings, arrays and maps of
 * definite length with text keys, at most TN_CBOR_DEPTH deep. Everything else (tags, indefinite lengths,
 * simple values, duplicate keys, non-UTF-8 text) is refused. The decoder allocates nothing: values are
 * views into the input. No function blocks; a checked input may be read by many threads. */
#ifndef TN_CORE_CBOR_H
#define TN_CORE_CBOR_H

#include <stdbool.h>

#include "core/wire.h"

#define TN_CBOR_DEPTH 8       /* containers within each other */
#define TN_CBOR_MAX_PAIRS 256 /* in one map; arrays may be as long as their bytes allow */

/* Writing: into a tn_wr, whose sticky failure covers everything. The caller writes as many items as it
 * announced, and text that is UTF-8: the reader refuses any other. */
TN_API void tn_cbor_put_map(tn_wr *w, size_t pairs);
TN_API void tn_cbor_put_array(tn_wr *w, size_t items);
TN_API void tn_cbor_put_u64(tn_wr *w, uint64_t v);
TN_API void tn_cbor_put_i64(tn_wr *w, int64_t v);
TN_API void tn_cbor_put_f64(tn_wr *w, double v);
TN_API void tn_cbor_put_bool(tn_wr *w, bool v);
TN_API void tn_cbor_put_text(tn_wr *w, const char *s);
TN_API void tn_cbor_put_textn(tn_wr *w, const char *s, size_t n);
TN_API void tn_cbor_put_bytes(tn_wr *w, const void *p, size_t n);

typedef enum tn_cbor_kind {
    TN_CBOR_NONE, /* absent, or past the end */
    TN_CBOR_UINT,
    TN_CBOR_NEGINT,
    TN_CBOR_F64,
    TN_CBOR_BOOL,
    TN_CBOR_TEXT,
    TN_CBOR_BYTES,
    TN_CBOR_ARRAY,
    TN_CBOR_MAP,
} tn_cbor_kind;

/* One value; for arrays and maps a view of the encoded items. */
typedef struct tn_cbor {
    tn_cbor_kind kind;
    uint64_t u;       /* UINT: the value; NEGINT: -1 - value; BOOL: 0 or 1; ARRAY: items; MAP: pairs */
    double f;         /* F64 */
    const uint8_t *p; /* TEXT, BYTES: the content (not terminated); ARRAY, MAP: the first item */
    size_t n;         /* bytes behind p */
} tn_cbor;

/* Checks the whole input once (well-formed, within the subset and the depth, every announced count
 * present, nothing left over) and gives its root. After that the getters below cannot run out of the
 * input. */
TN_API tn_code tn_cbor_parse(const void *p, size_t n, tn_cbor *root, tn_err *err);

/* Walks an array (key untouched, may be NULL) or a map (key = the pair's key). Start from a copy of the
 * container: each call takes one item off its front and returns false when none is left. */
TN_API bool tn_cbor_next(tn_cbor *container, tn_cbor *key, tn_cbor *value);
/* The value of a key in a map, kind NONE when absent or when it is not a map. Linear in the map. */
TN_API tn_cbor tn_cbor_get(const tn_cbor *map, const char *key);

/* Typed getters from a map: TN_EPROTO when the key is absent, of another kind or outside the limits; the
 * error names the key, what was expected and what was there, and *out is untouched. */
TN_API tn_code tn_cbor_get_u64(const tn_cbor *map, const char *key, uint64_t max, uint64_t *out, tn_err *err);
/* Integers are accepted too, rounded to the nearest double; NaN and infinities are for the caller to judge. */
TN_API tn_code tn_cbor_get_f64(const tn_cbor *map, const char *key, double *out, tn_err *err);
TN_API tn_code tn_cbor_get_bool(const tn_cbor *map, const char *key, bool *out, tn_err *err);
/* Copied into out[cap], terminated; refuses embedded NUL and text over cap - 1 bytes. */
TN_API tn_code tn_cbor_get_text(const tn_cbor *map, const char *key, char *out, size_t cap, tn_err *err);
/* Exactly n bytes. */
TN_API tn_code tn_cbor_get_bytes(const tn_cbor *map, const char *key, void *out, size_t n, tn_err *err);
/* Refuses a map with a key that is not in the NULL-terminated list, by its name. */
TN_API tn_code tn_cbor_only(const tn_cbor *map, const char *const *keys, tn_err *err);

#endif

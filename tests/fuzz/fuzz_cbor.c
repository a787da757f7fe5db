/* CBOR: whatever the bytes are, parse refuses them or every walk stays inside them. */
#include "core/cbor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(tn_cbor v, int depth) {
    tn_cbor key, value;

    if (depth > TN_CBOR_DEPTH)
        __builtin_trap();
    if (v.kind != TN_CBOR_ARRAY && v.kind != TN_CBOR_MAP)
        return;
    while (tn_cbor_next(&v, &key, &value))
        walk(value, depth + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_cbor root;
    tn_err err = TN_ERR_INIT;

    if (tn_cbor_parse(data, size, &root, &err) == TN_OK)
        walk(root, 0);
    else if (err.code == TN_OK || err.msg[0] == '\0')
        __builtin_trap(); /* a refusal says why */
    return 0;
}

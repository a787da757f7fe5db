/* Layouts from the wire: refused, or sealed within their limits, and the same again after a round trip. */
#include "core/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_cbor root;
    tn_layout l, again;
    tn_wr w = tn_wr_init(64u << 20);
    tn_err err = TN_ERR_INIT;

    tn_layout_init(&l);
    tn_layout_init(&again);
    if (tn_cbor_parse(data, size, &root, &err) == TN_OK && tn_layout_decode(&l, &root, &err) == TN_OK) {
        if (l.count > TN_LAYOUT_MAX_TENSORS || l.nbytes > (size_t)TN_LAYOUT_MAX_BYTES)
            __builtin_trap();
        tn_layout_encode(&l, &w);
        if (w.fail != TN_OK || tn_cbor_parse(w.p, w.len, &root, &err) != TN_OK ||
            tn_layout_decode(&again, &root, &err) != TN_OK ||
            tn_layout_same(&l, "one", &again, "the other", &err) != TN_OK)
            __builtin_trap();
    }
    tn_wr_release(&w);
    tn_layout_release(&again);
    tn_layout_release(&l);
    return 0;
}

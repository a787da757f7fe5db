/* Headers of .safetensors files: the first two bytes say how many data bytes the file claims to have. */
#include <stdlib.h>

#include "core/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_layout l;
    uint64_t *offset = NULL;
    char *meta = NULL;
    uint64_t have;
    tn_err err = TN_ERR_INIT;

    if (size < 2)
        return 0;
    have = (uint64_t)data[0] | (uint64_t)data[1] << 8;
    tn_layout_init(&l);
    if (tn_st_parse_header((const char *)data + 2, size - 2, have, &l, &offset, &meta, &err) == TN_OK) {
        if (l.nbytes != have)
            __builtin_trap();
        for (size_t i = 0; i < l.count; i++)
            if (offset[i] > have || l.entry[i].nbytes > have - offset[i])
                __builtin_trap();
    }
    free(offset);
    free(meta);
    tn_layout_release(&l);
    return 0;
}

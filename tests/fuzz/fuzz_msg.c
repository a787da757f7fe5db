/* Bodies of the protocol's messages: the first byte chooses which; what is accepted encodes and decodes again. */
#include "fed/fed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define X(name)                                                                  \
    static void try_##name(const uint8_t *p, size_t n) {                         \
        static tn_msg_##name m, again;                                           \
        tn_wr w = tn_wr_init(64u << 20);                                         \
        tn_err err = TN_ERR_INIT;                                                \
                                                                                 \
        if (tn_msg_##name##_decode(&m, p, n, &err) == TN_OK) {                   \
            tn_msg_##name##_encode(&m, &w);                                      \
            if (w.fail != TN_OK || tn_msg_##name##_decode(&again, w.p, w.len, &err) != TN_OK) \
                __builtin_trap();                                                \
            done_##name(&again);                                                 \
            done_##name(&m);                                                     \
        }                                                                        \
        tn_wr_release(&w);                                                       \
    }
#define NOTHING_TO_RELEASE(name) \
    static void done_##name(tn_msg_##name *m) { (void)m; }
NOTHING_TO_RELEASE(challenge)
NOTHING_TO_RELEASE(hello)
NOTHING_TO_RELEASE(error)
NOTHING_TO_RELEASE(task)
NOTHING_TO_RELEASE(get)
NOTHING_TO_RELEASE(begin)
NOTHING_TO_RELEASE(resume)
NOTHING_TO_RELEASE(accepted)
NOTHING_TO_RELEASE(notice)
static void done_welcome(tn_msg_welcome *m) { tn_msg_welcome_release(m); }
TN_MSGS(X)
#undef X

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const kinds[])(const uint8_t *, size_t) = {
#define X(name) try_##name,
        TN_MSGS(X)
#undef X
    };

    if (size > 0)
        kinds[data[0] % (sizeof(kinds) / sizeof(kinds[0]))](data + 1, size - 1);
    return 0;
}

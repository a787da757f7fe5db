/* What clang's analyzer cannot see from one file: tn_fail leaves the code that it is given in *err and returns it, and
 * that code is not TN_OK. `make tidy` includes this in front of every file but core/error.c; nothing else does. */
#include "core/error.h"

static inline tn_code tidy_failed(tn_err *err, tn_code code) {
    if (code == TN_OK)
        __builtin_unreachable();
    if (err)
        err->code = code;
    return code;
}

#define tn_fail(err, code, ...)     ((void)(tn_fail)(err, code, __VA_ARGS__), tidy_failed(err, code))
#define tn_fail_sys(err, code, ...) ((void)(tn_fail_sys)(err, code, __VA_ARGS__), tidy_failed(err, code))

/* What clang's analyzer cannot see from one file: tn_fail returns the code that it is given. `make tidy` includes this
 * in front of every file but core/error.c; nothing else does. */
#include "core/error.h"

#define tn_fail(err, code, ...) ((void)(tn_fail)(err, code, __VA_ARGS__), (code))
#define tn_fail_sys(err, code, ...) ((void)(tn_fail_sys)(err, code, __VA_ARGS__), (code))

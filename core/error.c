/* Error values. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void put_sys(tn_err *e, int sys) {
    char text[96];
    size_t used = strlen(e->msg);

    if (strerror_r(sys, text, sizeof(text)) != 0)
        snprintf(text, sizeof(text), "error %d", sys);
    snprintf(e->msg + used, sizeof(e->msg) - used, ": %s", text);
}

tn_code tn_fail(tn_err *e, tn_code c, const char *fmt, ...) {
    if (e != NULL) {
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
        va_end(ap);
        e->code = c;
        e->sys = 0;
    }
    return c;
}

tn_code tn_fail_sys(tn_err *e, tn_code c, int sys, const char *fmt, ...) {
    if (e != NULL) {
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
        va_end(ap);
        e->code = c;
        e->sys = sys;
        put_sys(e, sys);
    }
    return c;
}

tn_code tn_ctx(tn_err *e, const char *fmt, ...) {
    char old[sizeof(e->msg)];
    int used;
    va_list ap;

    memcpy(old, e->msg, sizeof(old));
    va_start(ap, fmt);
    used = vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    if (used >= 0 && (size_t)used < sizeof(e->msg))
        snprintf(e->msg + used, sizeof(e->msg) - (size_t)used, ": %s", old);
    return e->code;
}

const char *tn_code_name(tn_code c) {
    switch (c) {
#define X(name, value, text) \
    case name:               \
        return #name;
        TN_CODES(X)
#undef X
    }
    return "TN_?";
}

const char *tn_code_text(tn_code c) {
    switch (c) {
#define X(name, value, text) \
    case name:               \
        return text;
        TN_CODES(X)
#undef X
    }
    return "unknown error";
}

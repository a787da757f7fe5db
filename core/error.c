/* Error values. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What the header shows to a static analyzer. */
#undef tn_fail
#undef tn_fail_sys

static void put_sys(tn_err *e, int sys) {
    char text[96];
    size_t used = strlen(e->msg);

    /* GNU's strerror_r: it returns the text, which need not lie in the buffer. */
    snprintf(e->msg + used, sizeof(e->msg) - used, ": %s", strerror_r(sys, text, sizeof(text)));
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
    char front[sizeof(e->msg)];
    size_t n, keep = strlen(e->msg);
    int rc;
    va_list ap;

    va_start(ap, fmt);
    rc = vsnprintf(front, sizeof(front) - 2, fmt, ap);
    va_end(ap);
    if (rc < 0)
        return e->code;
    n = strlen(front); /* what fitted */
    memcpy(front + n, ": ", 2);
    n += 2;
    if (keep > sizeof(e->msg) - 1 - n)
        keep = sizeof(e->msg) - 1 - n;
    memmove(e->msg + n, e->msg, keep);
    memcpy(e->msg, front, n);
    e->msg[n + keep] = '\0';
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

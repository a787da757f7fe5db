/* Errors: a code that programs act on and a sentence that a person reads.
 *
 * Every function that can fail returns a tn_code and takes a tn_err that its caller owns. There is no
 * thread-local and no static buffer, so errors are as thread-safe as the caller's own memory. A peer's
 * mistake is an error value; a broken invariant of ours is an assert. */
#ifndef TN_CORE_ERROR_H
#define TN_CORE_ERROR_H

#if defined(__GNUC__)
#define TN_API __attribute__((visibility("default")))
#define TN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TN_MUST_USE __attribute__((warn_unused_result))
#else
#define TN_API
#define TN_PRINTF(fmt, args)
#define TN_MUST_USE
#endif

/* name, value, text. Values are part of the wire protocol (refusals carry them): append, never renumber. */
#define TN_CODES(X)                                             \
    X(TN_OK, 0, "ok")                                           \
    X(TN_EINVAL, 1, "invalid argument")                         \
    X(TN_ENOMEM, 2, "out of memory")                            \
    X(TN_EPROTO, 3, "malformed message")                        \
    X(TN_EPEER, 4, "the peer is gone or refused")               \
    X(TN_ETIMEDOUT, 5, "timed out")                             \
    X(TN_ECANCELED, 6, "cancelled")                             \
    X(TN_EIO, 7, "input/output error")                          \
    X(TN_EAUTH, 8, "authentication failed")                     \
    X(TN_ESHAPE, 9, "names, shapes or dtypes differ")           \
    X(TN_ENONFINITE, 10, "NaN or Inf in an update")             \
    X(TN_EROUND, 11, "not for this round")                      \
    X(TN_EUNSUPPORTED, 12, "not supported")                     \
    X(TN_EVERSION, 13, "protocol or format version differs")    \
    X(TN_ETOOBIG, 14, "larger than allowed")                    \
    X(TN_EBUSY, 15, "busy")                                     \
    X(TN_ENOTFOUND, 16, "not found")                            \
    X(TN_EINTERNAL, 17, "internal error")

typedef enum tn_code {
#define X(name, value, text) name = value,
    TN_CODES(X)
#undef X
} tn_code;

typedef struct tn_err {
    tn_code code;
    int sys;       /* errno of the failed call, 0 when there was none */
    char msg[480]; /* one sentence: what was wrong, where, what to do; always terminated */
} tn_err;

#define TN_ERR_INIT {TN_OK, 0, {0}}

/* Fills *e (if not NULL) and returns c. Overwrites what was there. */
TN_API tn_code tn_fail(tn_err *e, tn_code c, const char *fmt, ...) TN_PRINTF(3, 4);
/* As tn_fail, and appends ": " and the text of errno `sys`. */
TN_API tn_code tn_fail_sys(tn_err *e, tn_code c, int sys, const char *fmt, ...) TN_PRINTF(4, 5);
/* Puts "<context>: " in front of the message and returns e->code. e must not be NULL. */
TN_API tn_code tn_ctx(tn_err *e, const char *fmt, ...) TN_PRINTF(2, 3);
/* A static analyzer reads one file at a time and cannot see that these two return c; told, it follows no path
 * on which a failure looks like TN_OK. c is evaluated twice here: it is a constant or a variable everywhere. */
#ifdef __clang_analyzer__
static inline tn_code tni_returns(tn_code returned, tn_code c) {
    (void)returned;
    return c;
}
#define tn_fail(e, c, ...) tni_returns(tn_fail(e, c, __VA_ARGS__), c)
#define tn_fail_sys(e, c, ...) tni_returns(tn_fail_sys(e, c, __VA_ARGS__), c)
#endif
/* "TN_EPEER" and "the peer is gone or refused". Never NULL; unknown values give "TN_?" and "unknown error". */
TN_API const char *tn_code_name(tn_code c);
TN_API const char *tn_code_text(tn_code c);

#endif

/* The outward functions: what is defined for which dtype, and the choice of the instruction set.
 *
 * The choice is one atomic pointer. Threads that meet it unset at the same time all work out the same answer, so
 * none waits for another. */
#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/log.h"
#include "kernels/internal.h"

/* ---- what is defined ----------------------------------------------------------------------------------------- */

static const char *const op_names[TN_OP_COUNT] = {
    [TN_SUM] = "SUM", [TN_AVG] = "AVG",   [TN_PRODUCT] = "PRODUCT", [TN_MIN] = "MIN",
    [TN_MAX] = "MAX", [TN_BAND] = "BAND", [TN_BOR] = "BOR",         [TN_BXOR] = "BXOR",
    [TN_PREMUL_SUM] = "PREMUL_SUM",       [TN_WMEAN] = "WMEAN",
};

static bool op_valid(tn_op op) {
    return (unsigned)op < TN_OP_COUNT;
}

const char *tn_op_name(tn_op op) {
    return op_valid(op) ? op_names[op] : "?";
}

/* NULL when op is defined for dtype, else why it is not. */
static const char *why_unsupported(tn_op op, tn_dtype dtype) {
    if (dtype == TN_F8_E8M0 && op != TN_MIN && op != TN_MAX)
        return "the format holds powers of two without zero or sign, so only MIN and MAX keep to it";
    switch (op) {
    case TN_SUM:
    case TN_PRODUCT:
        return NULL;
    case TN_AVG:
        return dtype == TN_BOOL ? "a bool has no average; convert it to a floating dtype" : NULL;
    case TN_MIN:
    case TN_MAX:
        return tn_dtype_is_complex(dtype) ? "complex numbers have no order" : NULL;
    case TN_BAND:
    case TN_BOR:
    case TN_BXOR:
        return tn_dtype_is_integer(dtype) ? NULL : "bitwise operations need an integer or bool dtype";
    case TN_PREMUL_SUM:
    case TN_WMEAN:
        return tn_dtype_is_integer(dtype) ? "weighted sums need a floating or complex dtype" : NULL;
    }
    return "there is no such operation";
}

bool tn_k_reduce_supported(tn_op op, tn_dtype dtype) {
    return op_valid(op) && tn_dtype_valid((int)dtype) && why_unsupported(op, dtype) == NULL;
}

tn_code tn_k_reduce_check(tn_op op, tn_dtype dtype, tn_err *err) {
    const char *why;

    if (!op_valid(op))
        return tn_fail(err, TN_EINVAL, "unknown reduction number %d", (int)op);
    if (!tn_dtype_valid((int)dtype))
        return tn_fail(err, TN_EINVAL, "unknown dtype number %d", (int)dtype);
    why = why_unsupported(op, dtype);
    if (why != NULL)
        return tn_fail(err, TN_EUNSUPPORTED, "%s is not defined for %s: %s", op_names[op], tn_dtype_name(dtype),
                       why);
    return TN_OK;
}

/* ---- which instruction set ----------------------------------------------------------------------------------- */

static bool always(void) {
    return true;
}

#if defined(__x86_64__)
/* The builtin asks the operating system, too, whether it saves the wide registers; it does not know F16C by name in
 * every compiler. */
static bool has_avx2(void) {
    unsigned a, b, c, d;

    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* The best first; the last two are never wanted by themselves on a CPU that has more. */
static const struct {
    const tni_kernels *kernels;
    bool (*has)(void);
} variants[] = {
#if defined(__x86_64__)
    {&tni_kernels_avx512, has_avx512},
    {&tni_kernels_avx2, has_avx2},
#endif
    {&tni_kernels_baseline, always},
    {&tni_kernels_scalar, always},
};
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

static _Atomic(const tni_kernels *) chosen;

/* NULL and a filled err when there is no such variant or the CPU lacks it. */
static const tni_kernels *find(const char *name, tn_err *err) {
    for (size_t i = 0; i < VARIANTS; i++) {
        if (strcmp(name, variants[i].kernels->name) != 0)
            continue;
        if (variants[i].has())
            return variants[i].kernels;
        tn_fail(err, TN_EUNSUPPORTED, "this CPU lacks %s: choose baseline or scalar", name);
        return NULL;
    }
    tn_fail(err, TN_EUNSUPPORTED,
            "no kernels named \"%.40s\" here: scalar, baseline, avx2 and avx512 exist on x86-64, scalar and "
            "baseline elsewhere", name);
    return NULL;
}

static const tni_kernels *choose(void) {
    const tni_kernels *k = NULL;
    const char *wish = getenv("TN_CPU");

    if (wish != NULL && wish[0] != '\0') {
        tn_err err = TN_ERR_INIT;

        k = find(wish, &err);
        if (k == NULL)
            tn_log(TN_LOG_WARN, "kernels", "TN_CPU is ignored: %s", err.msg);
    }
    for (size_t i = 0; k == NULL; i++) {
        if (variants[i].has())
            k = variants[i].kernels;
    }
    return k;
}

static const tni_kernels *kernels(void) {
    const tni_kernels *k = atomic_load_explicit(&chosen, memory_order_acquire);

    if (k == NULL) {
        k = choose();
        atomic_store_explicit(&chosen, k, memory_order_release);
    }
    return k;
}

const char *tn_k_variant(void) {
    return kernels()->name;
}

tn_code tn_k_force(const char *variant, tn_err *err) {
    tn_err why = TN_ERR_INIT;
    const tni_kernels *k = find(variant, err != NULL ? err : &why);

    if (k == NULL)
        return TN_EUNSUPPORTED;
    atomic_store_explicit(&chosen, k, memory_order_release);
    return TN_OK;
}

/* ---- the operations ------------------------------------------------------------------------------------------ */

#ifndef NDEBUG
static bool weights_ok(tn_op op, const double *weights, size_t k) {
    double sum = 0;

    if (op == TN_PREMUL_SUM)
        return weights != NULL;
    if (op != TN_WMEAN)
        return true;
    if (weights == NULL)
        return false;
    for (size_t j = 0; j < k; j++) {
        if (!isfinite(weights[j]) || weights[j] < 0)
            return false;
        sum += weights[j];
    }
    return sum > 0 && isfinite(sum);
}
#endif

void tn_k_reduce(tn_op op, tn_dtype dtype, void *dst, const void *const *src, const double *weights, size_t k,
                 size_t n) {
    assert(tn_k_reduce_supported(op, dtype) && k >= 1);
    assert(weights_ok(op, weights, k));
    kernels()->reduce(op, dtype, dst, src, weights, k, n);
}

void tn_k_add(tn_dtype dtype, void *dst, const void *a, const void *b, size_t n) {
    const void *const src[2] = {a, b};

    assert(dtype != TN_BOOL);
    tn_k_reduce(TN_SUM, dtype, dst, src, NULL, 2, n);
}

void tn_k_sub(tn_dtype dtype, void *dst, const void *a, const void *b, size_t n) {
    assert(tn_dtype_valid((int)dtype) && dtype != TN_BOOL && dtype != TN_F8_E8M0);
    kernels()->sub(dtype, dst, a, b, n);
}

void tn_k_scale(tn_dtype dtype, void *dst, const void *a, double factor, size_t n) {
    tn_k_reduce(TN_PREMUL_SUM, dtype, dst, &a, &factor, 1, n);
}

size_t tn_k_first_nonfinite(tn_dtype dtype, const void *a, size_t n) {
    assert(tn_dtype_valid((int)dtype));
    return tn_dtype_is_integer(dtype) ? n : kernels()->first_nonfinite(dtype, a, n);
}

double tn_k_sumsq(tn_dtype dtype, const void *a, size_t n) {
    assert(tn_dtype_valid((int)dtype) && !tn_dtype_is_integer(dtype));
    return kernels()->sumsq(dtype, a, n);
}

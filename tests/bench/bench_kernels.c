/* How fast the kernels read memory: one row a case, median of several runs, for a script to compare.
 *
 *     name  dtype  sources  elements  bytes read  GB/s
 *
 * One thread, measured in its own CPU time, so that other processes disturb the figures little.
 * bench_kernels [VARIANT] measures another variant than the one chosen for this CPU. Under five seconds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

#define RUNS 7
#define MAX_SOURCES 100
#define MILLION 1000000

static int64_t cpu_ns(void) {
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One row. Small cases are repeated within a run until they have read about 20 MB. */
static int row(const char *name, tn_op op, tn_dtype dtype, size_t k, size_t n) {
    size_t bytes = k * n * tn_dtype_size(dtype), inner = 1 + 20000000 / bytes;
    uint8_t *data = malloc(bytes), *dst = malloc(n * tn_dtype_size(dtype));
    const void *src[MAX_SOURCES];
    double weights[MAX_SOURCES], gbs[RUNS];
    int rc = 1;

    if (data == NULL || dst == NULL) {
        fprintf(stderr, "bench_kernels: out of memory for %s\n", name);
        goto out;
    }
    for (size_t i = 0; i < bytes; i++) /* the byte 0x3f starts ordinary numbers in every format */
        data[i] = i % 2 == 0 ? (uint8_t)(i >> 8) : 0x3f;
    memset(dst, 0, n * tn_dtype_size(dtype));
    for (size_t j = 0; j < k; j++) {
        src[j] = data + j * n * tn_dtype_size(dtype);
        weights[j] = (double)(j + 1);
    }
    for (int r = 0; r < RUNS; r++) {
        int64_t start = cpu_ns(), ns;

        for (size_t i = 0; i < inner; i++)
            tn_k_reduce(op, dtype, dst, src, weights, k, n);
        ns = cpu_ns() - start;
        gbs[r] = (double)bytes * (double)inner / (double)(ns > 0 ? ns : 1);
    }
    qsort(gbs, RUNS, sizeof(gbs[0]), by_value);
    printf("%-10s %-9s %4zu %8zu %10zu %7.2f\n", name, tn_dtype_name(dtype), k, n, bytes, gbs[RUNS / 2]);
    rc = 0;
out:
    free(dst);
    free(data);
    return rc;
}

int main(int argc, char **argv) {
    tn_err err = TN_ERR_INIT;
    int rc = 0;

    if (argc > 1 && tn_k_force(argv[1], &err) != TN_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.msg);
        return 2;
    }
    printf("# variant %s\n# name     dtype     sources elements bytes_read GB/s\n", tn_k_variant());
    rc |= row("sum_cached", TN_SUM, TN_F32, 2, 2000);
    rc |= row("sum", TN_SUM, TN_F32, 2, MILLION);
    rc |= row("sum", TN_SUM, TN_F32, 2, 4 * MILLION);
    rc |= row("sum", TN_SUM, TN_F32, 10, MILLION);
    rc |= row("max", TN_MAX, TN_F32, 2, MILLION);
    rc |= row("wmean", TN_WMEAN, TN_F32, 10, MILLION);
    rc |= row("wmean", TN_WMEAN, TN_F32, 100, MILLION);
    rc |= row("sum", TN_SUM, TN_BF16, 2, MILLION);
    rc |= row("sum", TN_SUM, TN_BF16, 10, MILLION);
    rc |= row("sum", TN_SUM, TN_F16, 2, MILLION);
    rc |= row("sum", TN_SUM, TN_F8_E4M3, 2, MILLION);
    rc |= row("sum", TN_SUM, TN_I32, 2, MILLION);
    return rc;
}

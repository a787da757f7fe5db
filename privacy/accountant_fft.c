/* The fast Fourier transform of complex numbers, radix 2 and in place (Cooley and Tukey 1965). What is between
 * forward and inverse here is multiplied point by point, so nobody puts it in order. Each twiddle factor is
 * computed by itself, so that errors do not add up along the table. */
#include <stdlib.h>
#include <math.h>

#include "privacy/dp_internal.h"

#define TWO_PI 6.28318530717958647692

tn_code tni_fft_init(tni_fft *f, size_t n, tn_err *err) {
    f->n = n;
    f->twiddle = malloc(n * sizeof(double) + 1); /* n/2 pairs */
    if (f->twiddle == NULL)
        return tn_fail(err, TN_ENOMEM, "no memory for a Fourier transform of %zu points", n);
    for (size_t i = 0; i < n / 2; i++) {
        f->twiddle[2 * i] = cos(TWO_PI * (double)i / (double)n);
        f->twiddle[2 * i + 1] = -sin(TWO_PI * (double)i / (double)n);
    }
    return TN_OK;
}

void tni_fft_release(tni_fft *f) {
    free(f->twiddle);
    f->twiddle = NULL;
}

/* From the longest butterflies to the shortest (decimation in frequency). */
void tni_fft_forward(const tni_fft *f, double *x) {
    for (size_t half = f->n / 2; half > 0; half /= 2) {
        for (size_t at = 0; at < f->n; at += 2 * half) {
            for (size_t k = 0; k < half; k++) {
                const double *w = f->twiddle + 2 * k * (f->n / (2 * half));
                double *a = x + 2 * (at + k), *b = a + 2 * half, re = a[0] - b[0], im = a[1] - b[1];

                a[0] += b[0];
                a[1] += b[1];
                b[0] = re * w[0] - im * w[1];
                b[1] = im * w[0] + re * w[1];
            }
        }
    }
}

/* The same backwards, with the conjugates of the factors. */
void tni_fft_inverse(const tni_fft *f, double *x) {
    for (size_t half = 1; half < f->n; half *= 2) {
        for (size_t at = 0; at < f->n; at += 2 * half) {
            for (size_t k = 0; k < half; k++) {
                const double *w = f->twiddle + 2 * k * (f->n / (2 * half));
                double *a = x + 2 * (at + k), *b = a + 2 * half;
                double re = b[0] * w[0] + b[1] * w[1], im = b[1] * w[0] - b[0] * w[1];

                b[0] = a[0] - re;
                b[1] = a[1] - im;
                a[0] += re;
                a[1] += im;
            }
        }
    }
    for (size_t i = 0; i < 2 * f->n; i++)
        x[i] /= (double)f->n;
}

/* The kernels of simd.inc for AVX2 and F16C; the Makefile gives -mavx2 -mf16c. */
#include "kernels/internal.h"

#if defined(__x86_64__)
#define VARIANT "avx2"
#define VARIANT_TABLE tni_kernels_avx2
#include "kernels/simd.inc"
#endif

/* The kernels of simd.inc for AVX-512 F, BW, DQ and VL, and F16C; the Makefile gives the flags. */
#include "kernels/internal.h"

#if defined(__x86_64__)
#define VARIANT "avx512"
#define VARIANT_TABLE tni_kernels_avx512
#include "kernels/simd.inc"
#endif

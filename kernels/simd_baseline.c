/* The kernels of simd.inc for the instruction set that the compiler takes for granted: SSE2 on x86-64, NEON on
 * aarch64. */
#include "kernels/internal.h"

#define VARIANT "baseline"
#define VARIANT_TABLE tni_kernels_baseline
#include "kernels/simd.inc"

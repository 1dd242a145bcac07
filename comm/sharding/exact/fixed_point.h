// Kernels of comm/sharding/exact/exact_sums.h: f32 arrays as 64-bit fixed point, where addition is
// associative. The bits do not depend on the device, the order or the number of threads.
#pragma once

#include "src/device/dispatch.h"

namespace tandem::kernels {

// to[i] (+)= from[i] * scale, rounded to the nearest integer, ties to even; 0 for an element that
// is not finite, or whose |from[i] * scale| is not below `limit`. `scale`: a power of two, or 0;
// `limit`: a power of two in [2^24, 2^62]. *largest becomes the maximum of itself and the bits of
// every |from[i]|. As integers these have the order of the numbers, then infinity, then NaN.
void quantise(Cpu, int64_t n, const float* from, double scale, double limit, int64_t* to, bool add,
              int32_t* largest);
void quantise(Cuda, int64_t n, const float* from, double scale, double limit, int64_t* to, bool add,
              int32_t* largest);

// to[i] = from[i] * scale, rounded once; `scale`: a power of two, or 0.
void dequantise(Cpu, int64_t n, const int64_t* from, double scale, float* to);
void dequantise(Cuda, int64_t n, const int64_t* from, double scale, float* to);

// Sums k[i]^2, where k[i] is x[i] * scale rounded to an integer. Each square is cut into digits of
// 21 bits, which are added to digits[0, 3), the lowest first. digits[3] counts the elements left
// out: those that are not finite, or with |x[i] * scale| of 1.25 * 2^31 or more. Up to 2^42
// elements the digits do not overflow.
inline constexpr int kSquareDigits = 3;
inline constexpr int kSquareDigitBits = 21;
void add_squares(Cpu, int64_t n, const float* x, double scale, int64_t* digits);
void add_squares(Cuda, int64_t n, const float* x, double scale, int64_t* digits);

}  // namespace tandem::kernels

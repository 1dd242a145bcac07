// f32 arrays as 64-bit fixed point, where addition is associative: the sums of
// comm/sharding/exact_sums.h. Whatever the device, the order and the number of threads, the bits
// are the same.
#pragma once

#include "src/device/dispatch.h"

namespace tandem::kernels {

// to[i] (+)= from[i] * scale, rounded to the nearest integer, ties to even; 0 for an element that
// is not finite, or not smaller than limit / scale in size. `scale`: a power of two, or 0; `limit`:
// a power of two in [2^24, 2^62]. *largest becomes at least the bits of every |from[i]|: as
// integers these are ordered as the numbers are, then infinity, then NaN.
void quantise(Cpu, int64_t n, const float* from, double scale, double limit, int64_t* to, bool add,
              int32_t* largest);
void quantise(Cuda, int64_t n, const float* from, double scale, double limit, int64_t* to, bool add,
              int32_t* largest);

// to[i] = from[i] * scale, rounded once; `scale`: a power of two, or 0.
void dequantise(Cpu, int64_t n, const int64_t* from, double scale, float* to);
void dequantise(Cuda, int64_t n, const int64_t* from, double scale, float* to);

// The sum of squares of k[i], x[i] * scale rounded to an integer, in digits of 21 bits: adds those
// of every k[i]^2 to digits[0, 3), the lowest first. digits[3] counts the elements left out, which
// are not finite, or 1.25 * 2^31 / scale or more in size. Of 2^42 elements the sums fit.
inline constexpr int kSquareDigits = 3;
inline constexpr int kSquareDigitBits = 21;
void add_squares(Cpu, int64_t n, const float* x, double scale, int64_t* digits);
void add_squares(Cuda, int64_t n, const float* x, double scale, int64_t* digits);

}  // namespace tandem::kernels

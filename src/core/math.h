// Elementwise mathematics written once for every device. The f32 forms have no branches and no
// library calls, so compilers vectorise loops over them; the f64 forms call the C library and serve
// gradient checks.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "src/core/host_device.h"

namespace tandem::math {

// The bits of |x|. As integers they have the order of the numbers, then infinity, then NaN.
TANDEM_HOST_DEVICE inline int32_t magnitude_bits(float x) {
  return std::bit_cast<int32_t>(x) & 0x7fffffff;
}

// a * b + c, rounded once where the processor has a fused multiply-add. Written as a function
// because in a sum of two products a compiler may fuse either one, and may choose differently for
// the vectorised loop and for its remainder.
TANDEM_HOST_DEVICE inline float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__FP_FAST_FMAF)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

TANDEM_HOST_DEVICE inline double exp(double x) { return std::exp(x); }

// e^x by range reduction to 2^n * e^r, |r| <= ln(2)/2, and a degree-6 polynomial (Cephes expf);
// relative error below 2e-7. Underflows to 0 below -87.3, overflows to infinity above 88.7, and
// keeps NaN.
TANDEM_HOST_DEVICE inline float exp(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f;  // adds 1.5 * 2^23: rounds to nearest
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // The low bits of `shifted` are n. Adding n to the exponent of p multiplies p by 2^n. The sum is
  // unsigned because it wraps where x is out of range; such results are not used.
  const uint32_t scaled = std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23);
  const float bounded = x < -87.3f ? 0.0f : std::bit_cast<float>(scaled);
  return x <= 88.7f ? bounded : x * INFINITY;  // NaN takes this branch too, and stays NaN
}

template <class T>
TANDEM_HOST_DEVICE inline T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

}  // namespace tandem::math

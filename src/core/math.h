// Elementwise mathematics written once for every device. The f32 forms have no branches and no
// library calls, so compilers vectorise loops over them; the f64 forms call the C library and serve
// gradient checks.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "src/core/dispatch.h"

namespace tandem::math {

TANDEM_HOST_DEVICE inline double exp(double x) { return std::exp(x); }

// e^x by range reduction to 2^n * e^r, |r| <= ln(2)/2, and a degree-6 polynomial (Cephes expf);
// relative error below 2e-7. Underflows to 0 below -87.3, overflows to infinity above 88.7, and
// keeps NaN.
TANDEM_HOST_DEVICE inline float exp(float x) {
  const float clamped = x < -87.3f ? -87.3f : (x > 88.7f ? 88.7f : x);
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // adds 1.5 * 2^23: rounds to nearest
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, because n = 128 is one past the largest exponent.
  const int32_t half = static_cast<int32_t>(n) >> 1;
  const int32_t rest = static_cast<int32_t>(n) - half;
  const float scaled =
      p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((rest + 127) << 23);
  const float bounded = x > 88.7f ? INFINITY : (x < -87.3f ? 0.0f : scaled);
  return x == x ? bounded : x;
}

// tanh(x) = 1 - 2 / (e^2x + 1)
template <class T>
TANDEM_HOST_DEVICE inline T tanh(T x) {
  return T(1) - T(2) / (exp(T(2) * x) + T(1));
}

template <class T>
TANDEM_HOST_DEVICE inline T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

}  // namespace tandem::math

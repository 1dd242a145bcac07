// Replaces src/device/ptx.cuh on the emulated GPU: each function does what its instruction does.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

namespace tandem::ptx {

// 2^x; subnormal arguments and results are zero. 2^-inf = 0.
inline float exp2(float x) {
  const float y = std::exp2(std::fabs(x) < FLT_MIN ? 0.0f : x);
  return y < FLT_MIN ? 0.0f : y;
}

}  // namespace tandem::ptx

// Replaces src/device/ptx.cuh on the emulated GPU: each function does what its instruction does.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "src/core/float16.h"

namespace tandem::ptx {

// 2^x; subnormal arguments and results are zero. 2^-inf = 0.
inline float exp2(float x) {
  const float y = std::exp2(std::fabs(x) < FLT_MIN ? 0.0f : x);
  return y < FLT_MIN ? 0.0f : y;
}

// Two numbers rounded to nearest even, `low` in the lower 16 bits.
inline uint32_t bf16_pair(float low, float high) {
  return uint32_t{float16::bf16_from_float(high)} << 16 | float16::bf16_from_float(low);
}
inline uint32_t fp16_pair(float low, float high) {
  return uint32_t{float16::fp16_from_float(high)} << 16 | float16::fp16_from_float(low);
}

}  // namespace tandem::ptx

// GPU instructions that C++ cannot express. The emulated GPU of tests/simt/ replaces this header by
// one with the same semantics.
#pragma once

#include <cstdint>

namespace tandem::ptx {

// 2^x with an error of at most 2 ulp; subnormal results are zero. 2^-inf = 0.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers rounded to nearest even, `low` in the lower 16 bits. NaN gives 0x7fff.
__device__ inline uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline uint32_t fp16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace tandem::ptx

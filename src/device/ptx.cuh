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

}  // namespace tandem::ptx

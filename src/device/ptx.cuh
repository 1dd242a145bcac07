// The instructions that C++ has no words for. The emulated GPU of tests/simt/ exchanges this header
// for twins with the same semantics.
#pragma once

#include <cstdint>

namespace tandem::ptx {

// 2^x, 2 ulp; subnormal results are zero. 2^-inf = 0.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tandem::ptx

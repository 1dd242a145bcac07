// The logistic function by approximate instructions of a GPU.
#pragma once

#include "src/device/ptx.cuh"
#include "src/kernels/activation_functions.h"
#include "src/kernels/launch.cuh"

namespace tandem::kernels {

// gate(x).open = 1 / (1 + e), gate(x).closed = e / (1 + e), with e = 2^(-x log2(e)).
//
// Relative error of `open`, with u = 2^-24: the exponent is rounded once, and log2(e) is off by
// 0.23 u of itself, which changes e by 1.23 |x| u; exp2 changes it by 2 ulp, 4 u. Of these, 1 + e
// has the part closed(x). The sum is rounded, u, and reciprocal adds 1 ulp, 2 u:
//     (1.23 |x| + 4) closed(x) u + 3 u    at most 8 u for x > 0, (7 + 1.23 |x|) u otherwise.
// `closed` is computed without a difference and has the error of e and of `open`: at most
// (12 + 2.46 |x|) u. Numbers below 2^-100 may be anything below 2^-100.
struct GpuSigmoid {
  __device__ static math::GateValue<float> gate(float x) {
    const float e = ptx::exp2(-1.44269504f * x);
    const float open = ptx::reciprocal(1.0f + e);
    return {open, fminf(e, 0x1p100f) * open};  // infinity times zero is NaN
  }
};

}  // namespace tandem::kernels

// Compares every device and every precision with f64 on the CPU.
#pragma once

#include "tests/support/gradcheck.h"

namespace tandem::testing {

struct DeviceCheck {
  int64_t terms = 1;     // length of the longest f32 sum in the op, forward or backward
  double roundings = 4;  // roundings to the storage type on the way to an element
  double scale = 1.0;    // spread of inputs and parameters
  std::vector<DType> dtypes = {DType::kF32, DType::kBf16, DType::kFp16};
};

// Runs `op` forward and backward on every available device in all `dtypes`, with random inputs of
// the given shapes and random `parameters` (bound here). The result and all gradients must equal
// those of the same op in f64 on the CPU, from the same rounded inputs. An element may be off by
//     max |expected| * (roundings * u + terms * 2^-24),  u = 2^-24 (f32), 2^-8 (bf16), 2^-11
//     (fp16):
// each rounding to the storage type moves a value by at most u of itself, and an f32 sum of n terms
// by n * 2^-24 of the sum of their sizes.
void check_devices(const std::vector<Shape>& input_shapes,
                   const std::vector<Parameter*>& parameters, const OpUnderTest& op,
                   const DeviceCheck& check = {});

}  // namespace tandem::testing

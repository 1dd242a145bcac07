// A shard as kernels see it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/kernels/array_list.h"

namespace tandem::kernels {

inline constexpr size_t kMostSlots = 2;

// All arrays are [elements]. value and state: in and out; grad: in; working: the new values rounded
// to bf16 or fp16, null in f32.
struct alignas(16) ShardArrays {
  const float* grad;
  float* value;
  void* working;
  float* state[kMostSlots];
  int64_t elements;
  int64_t decay;
  int64_t aligned;  // all arrays are aligned to 16 bytes
};

// Calls f.template operator()<T>() with the type of working copies: Bf16, Fp16, or float for none.
template <class F>
void on_working_type(DType dtype, F f) {
  if (dtype == DType::kBf16) {
    f.template operator()<Bf16>();
  } else if (dtype == DType::kFp16) {
    f.template operator()<Fp16>();
  } else {
    f.template operator()<float>();
  }
}

}  // namespace tandem::kernels

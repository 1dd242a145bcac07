// Gradients are rounded to bf16 before they are sent, and added in f32 (group.h). One rank
// alone sends nothing.
#pragma once

#include "comm/sharding/sum_rule.h"
#include "src/kernels/convert.h"

namespace tandem {

class RoundedRule final : public SumRule {
 public:
  using SumRule::SumRule;

  bool messages_need_memory() const override { return true; }

  // reduce_scatter gives f32, which goes where the unrounded gradients were.
  Message message(int64_t bucket, const Tensor& gradient, const Tensor&, bool) override {
    if (setting_.layout.group(bucket).size() == 1) {
      return {gradient, gradient};
    }
    const Tensor rounded =
        Tensor::empty(scratch_, gradient.shape(), DType::kBf16, MemoryClass::kStaging);
    convert(setting_.stream, gradient, rounded);
    return {rounded, setting_.layout.place(bucket).shards_state() ? gradient : rounded};
  }
};

}  // namespace tandem

// Gradients are sent in blocks of eight-bit numbers, rounded at random, and added in f32 (group.h).
// One rank alone sends nothing.
#pragma once

#include "comm/sharding/sum_rule.h"
#include "src/device/dispatch.h"

namespace tandem {

class EightBitRule final : public SumRule {
 public:
  using SumRule::SumRule;

  // The noise is kept by itself, because the message may be written when the compute stream has
  // come to the next micro-step.
  Message message(int64_t bucket, const Tensor& gradient, const Tensor&, bool) override {
    const ModelLayout& layout = setting_.layout;
    if (layout.group(bucket).size() == 1) {
      return {gradient, gradient};
    }
    const Tensor noise =
        Tensor::empty(scratch_, {sizeof(BlockNoise)}, DType::kU8, MemoryClass::kStaging);
    auto* to = reinterpret_cast<BlockNoise*>(noise.raw());
    require(numbers_ != nullptr, "EightBitRule: rounding at random needs the numbers of the step");
    on_device(setting_.stream, touching(noise), [&](auto device) {
      kernels::make_noise(device, numbers_, static_cast<uint32_t>(layout.stage().rank()), to);
    });
    return {.addend = gradient,
            .sum = gradient,
            .eight_bits =
                BlockRounding{.noise = to,
                              .first = static_cast<uint64_t>(layout.place(bucket).whole.begin)},
            .noise = noise};
  }
};

}  // namespace tandem

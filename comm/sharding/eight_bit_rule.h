// Gradients are sent in blocks of eight-bit numbers, rounded at random, and added in f32 (group.h).
// One rank alone sends nothing.
#pragma once

#include "comm/sharding/sum_rule.h"
#include "src/device/dispatch.h"

namespace tandem {

class EightBitRule final : public SumRule {
 public:
  using SumRule::SumRule;

  // The noise is kept by itself, because messages may be written when the compute stream has come
  // to the next micro-step.
  void begin_micro_step(const StepNumbers* numbers) override {
    require(numbers != nullptr, "EightBitRule: rounding at random needs the numbers of the step");
    noise_ = Tensor::empty(scratch_, {sizeof(BlockNoise)}, DType::kU8, MemoryClass::kStaging);
    const auto rank = static_cast<uint32_t>(setting_.layout.stage().rank());
    on_device(setting_.stream, touching(noise_),
              [&](auto device) { kernels::make_noise(device, numbers, rank, noise()); });
  }

  Message message(int64_t bucket, const Tensor& gradient, const Tensor&, bool) override {
    const auto first = static_cast<uint64_t>(setting_.layout.place(bucket).whole.begin);
    return {.addend = gradient,
            .sum = gradient,
            .eight_bits = BlockRounding{.noise = noise(), .first = first},
            .noise = noise_};
  }

  bool finish_step() override {
    noise_ = Tensor();
    return true;
  }

 private:
  BlockNoise* noise() const { return reinterpret_cast<BlockNoise*>(noise_.raw()); }

  Tensor noise_;  // u8 [sizeof(BlockNoise)], of this micro-step
};

}  // namespace tandem

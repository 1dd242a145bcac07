// Lion: the sign of a mean of gradients, with decoupled weight decay (Chen et al. 2023,
// arXiv:2302.06675, program 1). With g = grad_scale * grad:
//     value = (1 - lr weight_decay) value - lr sign(beta1 m + (1 - beta1) g)
//     m     = beta2 m + (1 - beta2) g
// sign(0) is 0. The weight decay applies only to shards with `decay`. The authors take a learning
// rate 3 to 10 times smaller than with AdamW, and a weight decay as many times larger.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>

#include "optim/optimizer.h"
#include "src/device/dispatch.h"

namespace tandem {

struct LionOptions {
  double beta1 = 0.9;         // of the mean whose sign is taken, in [0, 1)
  double beta2 = 0.99;        // decay of the mean that is kept, in [0, 1)
  double weight_decay = 0.1;  // per unit of learning rate, at least 0
};

// State: slot "m", f32, MemoryClass::kOptimizer: 4 bytes per element. Throws Error(kConfig) naming
// the key that is out of range, Error(kOutOfMemory) from `memory`. An element's new value depends
// only on that element.
std::unique_ptr<Optimizer> make_optimizer(const LionOptions& options, std::span<const Shard> shards,
                                          const OptimizerMemory& memory);

// What one update needs, computed in f64 and rounded once.
struct alignas(16) LionScalars {
  float grad_scale;
  float rate1;  // 1 - beta1
  float rate2;  // 1 - beta2
  float keep;   // 1 - lr weight_decay, for shards with decay
  float lr;
  int32_t apply;
};

// The rule for flat_optimizer.h. Each sum has only one product, as in AdamWRule.
struct LionRule {
  using Options = LionOptions;
  using Scalars = LionScalars;
  static constexpr std::string_view kName = "Lion";
  static constexpr std::array<std::string_view, 1> kSlots = {"m"};

  TANDEM_HOST_DEVICE static Scalars prepare(const Options& options, double lr,
                                            const StepState& state) {
    return {
        .grad_scale = state.grad_scale,
        .rate1 = static_cast<float>(1 - options.beta1),
        .rate2 = static_cast<float>(1 - options.beta2),
        .keep = static_cast<float>(1 - lr * options.weight_decay),
        .lr = static_cast<float>(lr),
        .apply = state.apply,
    };
  }

  TANDEM_HOST_DEVICE LionRule(const Scalars& scalars, bool decay) : s(scalars) {
    s.keep = decay ? s.keep : 1;
  }

  TANDEM_HOST_DEVICE void operator()(float grad, float& value, float& m) const {
    const float g = s.grad_scale * grad;
    const float mean = m + s.rate1 * (g - m);
    const float move = mean > 0 ? s.lr : mean < 0 ? -s.lr : 0;
    value = s.keep * value - move;
    m = m + s.rate2 * (g - m);
  }

  Scalars s;
};

}  // namespace tandem

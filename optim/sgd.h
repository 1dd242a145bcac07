// Stochastic gradient descent with momentum, exactly as torch.optim.SGD with dampening 0. With
// g = grad_scale * grad + weight_decay * value (the decay only for shards with `decay`):
//     momentum = mu momentum + g
//     value    = value - lr * momentum              (plain)
//     value    = value - lr * (g + mu momentum)     (Nesterov: Sutskever et al. 2013)
// The momentum starts at zero, so after the first step it is g, as in PyTorch.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "src/core/math.h"

namespace tandem {

struct SgdOptions {
  double momentum = 0.9;      // mu, in [0, 1); 0: no state
  bool nesterov = false;      // needs momentum
  double weight_decay = 0.0;  // coupled: added to the gradient; at least 0
  // Messages about settings that exclude each other; empty if there are none.
  std::vector<std::string> problems() const;
};

// State: slot "momentum", f32, MemoryClass::kOptimizer: 4 bytes per element; none when
// options.momentum is 0. Throws Error(kConfig) naming the key that is out of range, or the options'
// problems(), Error(kOutOfMemory) from `memory`. An element's new value depends only on that
// element.
std::unique_ptr<Optimizer> make_optimizer(const SgdOptions& options, std::span<const Shard> shards,
                                          const OptimizerMemory& memory);

struct alignas(16) SgdScalars {
  float lr;
  float grad_scale;
  float momentum;
  float weight_decay;  // for shards with decay
  int32_t apply;
};

// The rules for flat_optimizer.h: without momentum and with it.
struct SgdRule {
  using Options = SgdOptions;
  using Scalars = SgdScalars;
  static constexpr std::string_view kName = "SGD";
  static constexpr std::array<std::string_view, 0> kSlots = {};

  TANDEM_HOST_DEVICE static Scalars prepare(const Options& options, double lr,
                                            const StepState& state) {
    return {
        .lr = static_cast<float>(lr),
        .grad_scale = state.grad_scale,
        .momentum = static_cast<float>(options.momentum),
        .weight_decay = static_cast<float>(options.weight_decay),
        .apply = state.apply,
    };
  }

  TANDEM_HOST_DEVICE SgdRule(const Scalars& scalars, bool decay) : s(scalars) {
    s.weight_decay = decay ? s.weight_decay : 0;
  }

  TANDEM_HOST_DEVICE float decayed(float grad, float value) const {
    return math::multiply_add(s.grad_scale, grad, s.weight_decay * value);
  }

  TANDEM_HOST_DEVICE void operator()(float grad, float& value) const {
    const float g = decayed(grad, value);
    value -= s.lr * g;
  }

  Scalars s;
};

template <bool kNesterov>
struct SgdMomentumRule : SgdRule {
  static constexpr std::array<std::string_view, 1> kSlots = {"momentum"};
  using SgdRule::SgdRule;

  TANDEM_HOST_DEVICE void operator()(float grad, float& value, float& momentum) const {
    const float g = decayed(grad, value);
    const float velocity = g + s.momentum * momentum;
    momentum = velocity;
    value -= s.lr * (kNesterov ? g + s.momentum * velocity : velocity);
  }
};

}  // namespace tandem

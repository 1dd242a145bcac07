// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019), equal to torch.optim.AdamW up
// to the last bits. With g = grad_scale * grad and t = the updates so far, this one included:
//     m     = beta1 m + (1 - beta1) g
//     v     = beta2 v + (1 - beta2) g^2
//     value = (1 - lr weight_decay) value - lr / (1 - beta1^t) * m / denom
//     denom = sqrt(v) / sqrt(1 - beta2^t) + eps
// The weight decay applies only to shards with `decay`.
#pragma once

#include <array>
#include <cmath>
#include <memory>
#include <span>

#include "optim/optimizer.h"
#include "src/device/dispatch.h"

namespace tandem {

struct AdamWOptions {
  double beta1 = 0.9;         // decay of the mean of gradients, in [0, 1)
  double beta2 = 0.95;        // decay of the mean of their squares, in [0, 1)
  double eps = 1e-8;          // added to the root, at least 0
  double weight_decay = 0.1;  // per unit of learning rate, at least 0
};

// State: slots "m" and "v", f32, MemoryClass::kOptimizer: 8 bytes per element. Throws
// Error(kConfig) naming the key that is out of range, Error(kOutOfMemory) from `memory`. An
// element's new value depends only on that element: cutting parameters into other shards changes no
// bit.
std::unique_ptr<Optimizer> make_optimizer(const AdamWOptions& options,
                                          std::span<const Shard> shards,
                                          const OptimizerMemory& memory);

// What one update needs, computed in f64 and rounded once.
struct alignas(16) AdamWScalars {
  float grad_scale;
  float rate1;             // 1 - beta1
  float rate2;             // 1 - beta2
  float keep;              // 1 - lr weight_decay, for shards with decay
  float step_size;         // lr / (1 - beta1^t)
  float inverse_root_bc2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  int32_t apply;
};

// The rule for flat_optimizer.h. Each sum has only one product. So a compiler has only one way to
// form a fused multiply-add, and vector loops and their remainders give the same bits.
struct AdamWRule {
  using Options = AdamWOptions;
  using Scalars = AdamWScalars;
  static constexpr std::string_view kName = "AdamW";
  static constexpr std::array<std::string_view, 2> kSlots = {"m", "v"};

  TANDEM_HOST_DEVICE static Scalars prepare(const Options& options, double lr,
                                            const StepState& state) {
    const double t = static_cast<double>(state.updates);
    const double correction1 = 1 - std::pow(options.beta1, t);
    const double correction2 = 1 - std::pow(options.beta2, t);
    return {
        .grad_scale = state.grad_scale,
        .rate1 = static_cast<float>(1 - options.beta1),
        .rate2 = static_cast<float>(1 - options.beta2),
        .keep = static_cast<float>(1 - lr * options.weight_decay),
        .step_size = static_cast<float>(lr / correction1),
        .inverse_root_bc2 = static_cast<float>(1 / std::sqrt(correction2)),
        .eps = static_cast<float>(options.eps),
        .apply = state.apply,
    };
  }

  TANDEM_HOST_DEVICE AdamWRule(const Scalars& scalars, bool decay) : s(scalars) {
    s.keep = decay ? s.keep : 1;
  }

  TANDEM_HOST_DEVICE void operator()(float grad, float& value, float& m, float& v) const {
    const float g = s.grad_scale * grad;
    const float mean = m + s.rate1 * (g - m);
    const float square = v + s.rate2 * (g * g - v);
    const float denom = std::sqrt(square) * s.inverse_root_bc2 + s.eps;
    const float move = s.step_size * mean / denom;
    value = s.keep * value - move;
    m = mean;
    v = square;
  }

  Scalars s;
};

}  // namespace tandem

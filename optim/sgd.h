// Stochastic gradient descent with momentum, exactly as torch.optim.SGD with dampening 0. With
// g = grad_scale * grad + weight_decay * value (the decay only for shards with `decay`):
//     momentum = mu momentum + g
//     value    = value - lr * momentum              (plain)
//     value    = value - lr * (g + mu momentum)     (Nesterov: Sutskever et al. 2013)
// The momentum starts at zero, so after the first step it is g, as in PyTorch.
#pragma once

#include <memory>
#include <span>

#include "optim/optimizer.h"
#include "src/core/dispatch.h"

namespace tandem {

struct SgdOptions {
  double momentum = 0.9;      // mu, in [0, 1); 0: no state
  bool nesterov = false;      // needs momentum
  double weight_decay = 0.0;  // coupled: added to the gradient; at least 0
};

// State: slot "momentum", f32, MemoryClass::kOptimizer: 4 bytes per element; none when
// options.momentum is 0. Throws Error(kConfig) naming the key that is out of range,
// Error(kOutOfMemory) from `memory`. Every element's new value depends on that element alone, to
// the bit.
std::unique_ptr<Optimizer> make_sgd(const SgdOptions& options, std::span<const Shard> shards,
                                    Memory& memory);

namespace kernels {

struct SgdScalars {
  float lr;
  float grad_scale;
  float momentum;
  float weight_decay;  // 0 without decay
};

// The updates of element i, for all devices.
struct SgdUpdate {
  float* value;
  const float* grad;
  SgdScalars s;

  TANDEM_HOST_DEVICE void operator()(int64_t i) const {
    const float g = s.grad_scale * grad[i] + s.weight_decay * value[i];
    value[i] -= s.lr * g;
  }
};

template <bool kNesterov>
struct SgdMomentumUpdate {
  float* value;
  const float* grad;
  float* momentum;
  SgdScalars s;

  TANDEM_HOST_DEVICE void operator()(int64_t i) const {
    const float g = s.grad_scale * grad[i] + s.weight_decay * value[i];
    const float velocity = g + s.momentum * momentum[i];
    momentum[i] = velocity;
    value[i] -= s.lr * (kNesterov ? g + s.momentum * velocity : velocity);
  }
};

// value, momentum: in and out; grad: in; all [n]. `momentum` null: none is used.
void sgd_update(Cpu, float* value, const float* grad, float* momentum, bool nesterov, int64_t n,
                SgdScalars scalars);

}  // namespace kernels

}  // namespace tandem

// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019), rounded and ordered as
// torch.optim.AdamW up to the last bits. With g = grad_scale * grad and t = step:
//     m     = beta1 m + (1 - beta1) g
//     v     = beta2 v + (1 - beta2) g^2
//     value = (1 - lr weight_decay) value - lr / (1 - beta1^t) * m / denom
//     denom = sqrt(v) / sqrt(1 - beta2^t) + eps
// The weight decay applies only to shards with `decay`.
#pragma once

#include <cmath>
#include <memory>
#include <span>

#include "optim/optimizer.h"
#include "src/core/dispatch.h"

namespace tandem {

struct AdamWOptions {
  double beta1 = 0.9;         // decay of the mean of gradients, in [0, 1)
  double beta2 = 0.95;        // decay of the mean of their squares, in [0, 1)
  double eps = 1e-8;          // added to the root, at least 0
  double weight_decay = 0.1;  // per unit of learning rate, at least 0
};

// State: slots "m" and "v", f32, MemoryClass::kOptimizer: 8 bytes per element. Throws
// Error(kConfig) naming the key that is out of range, Error(kOutOfMemory) from `memory`.
// Every element's new value depends on that element alone, to the bit: cutting parameters into
// other shards changes nothing.
std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options, std::span<const Shard> shards,
                                      Memory& memory);

namespace kernels {

// What one update needs, computed in f64 and rounded once.
struct AdamWScalars {
  float grad_scale;
  float rate1;             // 1 - beta1
  float rate2;             // 1 - beta2
  float keep;              // 1 - lr weight_decay, or 1 without decay
  float step_size;         // lr / (1 - beta1^t)
  float inverse_root_bc2;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

// The update of element i, for all devices. Each sum has one product, so that a compiler that
// contracts to fused multiply-add has one way to do it, in vectors and in their remainders alike.
struct AdamWUpdate {
  float* value;
  const float* grad;
  float* m;
  float* v;
  AdamWScalars s;

  TANDEM_HOST_DEVICE void operator()(int64_t i) const {
    const float g = s.grad_scale * grad[i];
    const float mean = m[i] + s.rate1 * (g - m[i]);
    const float square = v[i] + s.rate2 * (g * g - v[i]);
    const float denom = std::sqrt(square) * s.inverse_root_bc2 + s.eps;
    const float move = s.step_size * mean / denom;
    value[i] = s.keep * value[i] - move;
    m[i] = mean;
    v[i] = square;
  }
};

// value, m, v: in and out; grad: in; all [n].
void adamw_update(Cpu, float* value, const float* grad, float* m, float* v, int64_t n,
                  AdamWScalars scalars);

}  // namespace kernels

}  // namespace tandem

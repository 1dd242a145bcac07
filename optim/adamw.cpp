#include "optim/adamw.h"

#include <vector>

#include "src/core/map.h"

namespace tandem {

namespace kernels {

void adamw_update(Cpu, float* value, const float* grad, float* m, float* v, int64_t n,
                  AdamWScalars scalars) {
  map(Cpu{}, n, AdamWUpdate{value, grad, m, v, scalars});
}

}  // namespace kernels

namespace {

void require_in_range(std::string_view key, double value, double below) {
  if (!(value >= 0 && value < below)) {
    fail(ExitCode::kConfig, str(key, " = ", value, ": it must be at least 0",
                                std::isfinite(below) ? str(" and below ", below) : ""));
  }
}

class AdamW final : public Optimizer {
 public:
  AdamW(const AdamWOptions& options, std::span<const Shard> shards, Memory& memory)
      : options_(options) {
    for (const Shard& shard : shards) {
      const Shape shape{shard.value.elements()};
      m_.push_back(Tensor::zeros(memory, shape, DType::kF32, MemoryClass::kOptimizer));
      v_.push_back(Tensor::zeros(memory, shape, DType::kF32, MemoryClass::kOptimizer));
    }
  }

  void step(Stream& stream, std::span<const Shard> shards, const StepScalars& scalars) override {
    require(shards.size() == m_.size() && scalars.step >= 1, [&] {
      return str("AdamW: step ", scalars.step, " with ", shards.size(), " shards, made for ",
                 m_.size());
    });
    for (size_t i = 0; i < shards.size(); ++i) {
      const Shard& shard = shards[i];
      const int64_t n = m_[i].elements();
      require(shard.value.elements() == n && shard.grad.elements() == n, [&] {
        return str("AdamW: shard ", i, " has ", shard.value.elements(), " values and ",
                   shard.grad.elements(), " gradients, made for ", n);
      });
      on_device(stream, [&](auto device) {
        kernels::adamw_update(device, shard.value.data<float>(), shard.grad.data<float>(),
                              m_[i].data<float>(), v_[i].data<float>(), n,
                              scalars_for(scalars, shard.decay));
      });
    }
  }

  void visit(const StateVisitor& visitor) const override {
    for (size_t i = 0; i < m_.size(); ++i) {
      visitor("m", i, m_[i]);
      visitor("v", i, v_[i]);
    }
  }

 private:
  kernels::AdamWScalars scalars_for(const StepScalars& scalars, bool decay) const {
    const double t = static_cast<double>(scalars.step);
    const double correction1 = 1 - std::pow(options_.beta1, t);
    const double correction2 = 1 - std::pow(options_.beta2, t);
    return {
        .grad_scale = static_cast<float>(scalars.grad_scale),
        .rate1 = static_cast<float>(1 - options_.beta1),
        .rate2 = static_cast<float>(1 - options_.beta2),
        .keep = static_cast<float>(decay ? 1 - scalars.lr * options_.weight_decay : 1),
        .step_size = static_cast<float>(scalars.lr / correction1),
        .inverse_root_bc2 = static_cast<float>(1 / std::sqrt(correction2)),
        .eps = static_cast<float>(options_.eps),
    };
  }

  AdamWOptions options_;
  std::vector<Tensor> m_, v_;  // by shard
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const AdamWOptions& options, std::span<const Shard> shards,
                                      Memory& memory) {
  require_in_range("optim.beta1", options.beta1, 1);
  require_in_range("optim.beta2", options.beta2, 1);
  require_in_range("optim.eps", options.eps, INFINITY);
  require_in_range("optim.weight_decay", options.weight_decay, INFINITY);
  return std::make_unique<AdamW>(options, shards, memory);
}

}  // namespace tandem

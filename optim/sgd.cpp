#include "optim/sgd.h"

#include <vector>

#include "src/core/map.h"

namespace tandem {

namespace kernels {

void sgd_update(Cpu, float* value, const float* grad, float* momentum, bool nesterov, int64_t n,
                SgdScalars scalars) {
  if (momentum == nullptr) {
    map(Cpu{}, n, SgdUpdate{value, grad, scalars});
  } else if (nesterov) {
    map(Cpu{}, n, SgdMomentumUpdate<true>{value, grad, momentum, scalars});
  } else {
    map(Cpu{}, n, SgdMomentumUpdate<false>{value, grad, momentum, scalars});
  }
}

}  // namespace kernels

namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const SgdOptions& options, std::span<const Shard> shards, Memory& memory)
      : options_(options) {
    for (const Shard& shard : shards) {
      elements_.push_back(shard.value.elements());
      if (options.momentum > 0) {
        momentum_.push_back(
            Tensor::zeros(memory, Shape{elements_.back()}, DType::kF32, MemoryClass::kOptimizer));
      }
    }
  }

  void step(Stream& stream, std::span<const Shard> shards, const StepScalars& scalars) override {
    require(shards.size() == elements_.size(),
            [&] { return str("SGD: ", shards.size(), " shards, made for ", elements_.size()); });
    for (size_t i = 0; i < shards.size(); ++i) {
      const Shard& shard = shards[i];
      const int64_t n = elements_[i];
      require(shard.value.elements() == n && shard.grad.elements() == n, [&] {
        return str("SGD: shard ", i, " has ", shard.value.elements(), " values and ",
                   shard.grad.elements(), " gradients, made for ", n);
      });
      float* momentum = momentum_.empty() ? nullptr : momentum_[i].data<float>();
      const kernels::SgdScalars s{
          .lr = static_cast<float>(scalars.lr),
          .grad_scale = static_cast<float>(scalars.grad_scale),
          .momentum = static_cast<float>(options_.momentum),
          .weight_decay = static_cast<float>(shard.decay ? options_.weight_decay : 0),
      };
      on_device(stream, [&](auto device) {
        kernels::sgd_update(device, shard.value.data<float>(), shard.grad.data<float>(), momentum,
                            options_.nesterov, n, s);
      });
    }
  }

  void visit(const StateVisitor& visitor) const override {
    for (size_t i = 0; i < momentum_.size(); ++i) {
      visitor("momentum", i, momentum_[i]);
    }
  }

 private:
  SgdOptions options_;
  std::vector<int64_t> elements_;  // by shard
  std::vector<Tensor> momentum_;   // by shard, or none
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const SgdOptions& options, std::span<const Shard> shards,
                                    Memory& memory) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    fail(ExitCode::kConfig,
         str("optim.momentum = ", options.momentum, ": it must be at least 0 and below 1"));
  }
  if (!(options.weight_decay >= 0)) {
    fail(ExitCode::kConfig,
         str("optim.weight_decay = ", options.weight_decay, ": it must be at least 0"));
  }
  if (options.nesterov && options.momentum == 0) {
    fail(ExitCode::kConfig,
         "optim.nesterov = true needs optim.momentum above 0: set it, or turn nesterov off");
  }
  return std::make_unique<Sgd>(options, shards, memory);
}

}  // namespace tandem

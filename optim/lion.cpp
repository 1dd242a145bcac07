#include "optim/lion.h"

#include "optim/flat_optimizer.h"

namespace tandem {

std::unique_ptr<Optimizer> make_optimizer(const LionOptions& options, std::span<const Shard> shards,
                                          const OptimizerMemory& memory) {
  require_in_range("optim.beta1", options.beta1, 1);
  require_in_range("optim.beta2", options.beta2, 1);
  require_in_range("optim.weight_decay", options.weight_decay, INFINITY);
  return std::make_unique<FlatOptimizer<LionRule>>(options, shards, memory);
}

}  // namespace tandem

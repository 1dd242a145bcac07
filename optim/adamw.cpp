#include "optim/adamw.h"

#include "optim/flat_optimizer.h"

namespace tandem {

std::unique_ptr<Optimizer> make_optimizer(const AdamWOptions& options,
                                          std::span<const Shard> shards,
                                          const OptimizerMemory& memory) {
  require_in_range("optim.beta1", options.beta1, 1);
  require_in_range("optim.beta2", options.beta2, 1);
  require_in_range("optim.eps", options.eps, INFINITY);
  require_in_range("optim.weight_decay", options.weight_decay, INFINITY);
  return std::make_unique<FlatOptimizer<AdamWRule>>(options, shards, memory);
}

}  // namespace tandem

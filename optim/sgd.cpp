#include "optim/sgd.h"

#include "optim/flat_optimizer.h"

namespace tandem {

std::vector<std::string> SgdOptions::problems() const {
  if (nesterov && momentum == 0) {
    return {"optim.nesterov = true needs optim.momentum above 0: set it, or turn nesterov off"};
  }
  return {};
}

std::unique_ptr<Optimizer> make_optimizer(const SgdOptions& options, std::span<const Shard> shards,
                                          const OptimizerMemory& memory) {
  require_in_range("optim.momentum", options.momentum, 1);
  require_in_range("optim.weight_decay", options.weight_decay, INFINITY);
  fail_if_any(options.problems());
  if (options.momentum == 0) {
    return std::make_unique<FlatOptimizer<SgdRule>>(options, shards, memory);
  }
  if (options.nesterov) {
    return std::make_unique<FlatOptimizer<SgdMomentumRule<true>>>(options, shards, memory);
  }
  return std::make_unique<FlatOptimizer<SgdMomentumRule<false>>>(options, shards, memory);
}

}  // namespace tandem

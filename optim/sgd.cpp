#include "optim/sgd.h"

#include "optim/flat_optimizer.h"

namespace tandem {

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
  if (options.momentum == 0) {
    return std::make_unique<FlatOptimizer<SgdRule>>(options, shards, memory);
  }
  if (options.nesterov) {
    return std::make_unique<FlatOptimizer<SgdMomentumRule<true>>>(options, shards, memory);
  }
  return std::make_unique<FlatOptimizer<SgdMomentumRule<false>>>(options, shards, memory);
}

}  // namespace tandem

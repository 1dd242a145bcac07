// The values of optim.kind: each binds its own settings and makes its optimizer.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "src/options/kinds.h"

namespace tandem {

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual void bind(Options& options) = 0;
  // One line for each setting that excludes another one, with their names.
  virtual std::vector<std::string> problems() const = 0;
  // Whether the optimizer asks OptimizerMemory::matrices for whole matrices.
  virtual bool needs_matrices() const = 0;
  // Makes an optimizer of the shards. Throws what make_optimizer() of the rule's header in optim/
  // throws.
  virtual std::unique_ptr<Optimizer> make(std::span<const Shard> shards,
                                          const OptimizerMemory& memory) const = 0;
};

// All rules, with the defaults of their settings.
Kinds<UpdateRule> update_rules();

}  // namespace tandem

// What an optimizer, and the checkpoints of its state, see of a model: flat shards of masters and
// summed gradients that this rank updates alone.
#pragma once

#include <span>
#include <vector>

#include "comm/sharding/gradient_sync.h"
#include "src/device/shard.h"

namespace tandem {

class OptimizerShards {
 public:
  // Views of the memory of values and gradients, which must outlive this.
  OptimizerShards(const ModelLayout& layout, const ParamValues& values,
                  const GradientSync& gradients);

  // Per bucket at most two, the decayed and the other parameters. Frozen ones are in none.
  std::span<const Shard> all() const { return shards_; }
  // What all()[shard] is of, with in_flat in the shard; padding belongs to no extent.
  std::vector<Extent> extents(size_t shard) const;
  // What of it this rank writes to a checkpoint: over all ranks, every element exactly once.
  std::vector<Extent> owned_extents(size_t shard) const;
  const Parameter& parameter(const Extent& extent) const {
    return *layout_.parameters()[extent.parameter];
  }

 private:
  std::vector<Extent> extents_in(size_t shard, Range range) const;

  const ModelLayout& layout_;
  std::vector<ModelLayout::Run> runs_;  // by shard
  std::vector<Shard> shards_;
};

}  // namespace tandem

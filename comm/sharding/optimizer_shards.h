// A model as an optimizer and checkpoints of its state see it: flat shards of masters and summed
// gradients, which this rank updates without communication.
#pragma once

#include <span>
#include <vector>

#include "comm/sharding/gradient_sync.h"
#include "src/device/shard.h"

namespace tandem {

class OptimizerShards {
 public:
  // The shards are views of the memory of `values` and `gradients`, which must outlive this.
  OptimizerShards(const ModelLayout& layout, const ParamValues& values,
                  const GradientSync& gradients, const StoreOptions& options);

  // In the order of buckets, and of ModelLayout::runs() in each. What is offloaded is cut to fit
  // into a HostWindow. Frozen parameters are in none.
  std::span<const Shard> all() const { return shards_; }
  int64_t bucket(size_t shard) const { return runs_[shard].bucket; }
  // The runs of parameters in all()[shard], without padding. in_flat counts from the shard's start.
  std::vector<Extent> extents(size_t shard) const { return extents_of(shard, false); }
  // Those that this rank writes to a checkpoint: over all ranks, every element exactly once.
  std::vector<Extent> saved_extents(size_t shard) const { return extents_of(shard, true); }
  const Parameter& parameter(const Extent& extent) const {
    return *layout_.parameters()[extent.parameter];
  }

 private:
  std::vector<Extent> extents_of(size_t shard, bool only_saved) const;

  const ModelLayout& layout_;
  std::vector<ModelLayout::Run> runs_;  // by shard
  std::vector<Shard> shards_;
};

}  // namespace tandem

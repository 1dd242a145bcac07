#include "comm/sharding/optimizer_shards.h"

#include "src/core/error.h"

namespace tandem {

OptimizerShards::OptimizerShards(const ModelLayout& layout, const ParamValues& values,
                                 const GradientSync& gradients)
    : layout_(layout), runs_(layout.runs()) {
  for (const ModelLayout::Run& run : runs_) {
    const BucketPlace& place = layout.place(run.bucket);
    const int64_t state = place.state().begin;
    Shard& shard = shards_.emplace_back();
    shard.value = slice_of(values.masters(run.bucket), state, run.range);
    shard.grad = slice_of(gradients.gradients(run.bucket), place.gradients().begin, run.range);
    shard.decay = run.decay;
    if (const Tensor working = values.working(run.bucket)) {
      shard.working = slice_of(working, state, run.range);
    }
  }
}

std::vector<Extent> OptimizerShards::extents_in(size_t shard, Range range) const {
  const Range place = runs_[shard].range;
  std::vector<Extent> result = layout_.flat().extents(intersection(place, range));
  for (Extent& extent : result) {
    extent.in_flat -= place.begin;
  }
  return result;
}

std::vector<Extent> OptimizerShards::extents(size_t shard) const {
  require(shard < runs_.size(), "OptimizerShards: no such shard");
  return extents_in(shard, runs_[shard].range);
}

std::vector<Extent> OptimizerShards::owned_extents(size_t shard) const {
  require(shard < runs_.size(), "OptimizerShards: no such shard");
  return extents_in(shard, layout_.place(runs_[shard].bucket).owned);
}

}  // namespace tandem

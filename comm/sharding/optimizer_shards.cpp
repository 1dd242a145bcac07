#include "comm/sharding/optimizer_shards.h"

#include "src/core/error.h"

namespace tandem {

OptimizerShards::OptimizerShards(const ModelLayout& layout, const ParamValues& values,
                                 const GradientSync& gradients, const StoreOptions& options)
    : layout_(layout), runs_(layout.runs(options.offload_run)) {
  for (const ModelLayout::Run& run : runs_) {
    const BucketPlace& place = layout.place(run.bucket);
    const int64_t state = place.state().begin;
    Shard& shard = shards_.emplace_back();
    shard.value = slice_of(values.masters(run.bucket), state, run.range);
    shard.grad = slice_of(gradients.gradients(run.bucket), place.gradients().begin, run.range);
    shard.decay = run.decay;
    shard.matrix = run.matrix;
    if (const Tensor working = values.working(run.bucket)) {
      shard.working = slice_of(working, state, run.range);
    }
  }
}

std::vector<Extent> OptimizerShards::extents_of(size_t shard, bool only_saved) const {
  require(shard < runs_.size(), "OptimizerShards: no such shard");
  const ModelLayout::Run& run = runs_[shard];
  const Range wanted =
      only_saved ? intersection(run.range, layout_.place(run.bucket).saved) : run.range;
  return layout_.flat().extents(wanted, run.range.begin);
}

}  // namespace tandem

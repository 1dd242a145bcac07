// All that training keeps of a model's parameters over the ranks. Inference needs only a layout and
// values.
#pragma once

#include "comm/sharding/optimizer_shards.h"

namespace tandem {

struct ParamStore {
  // Collective. `stream`: the compute stream. All references must outlive this. Throws what its
  // members throw.
  ParamStore(std::vector<BlockParameters> blocks, const ModelGroups& groups, Stream& stream,
             Memory& memory, const StoreOptions& options)
      : layout(std::move(blocks), groups, stream.device(), options),
        values(layout, stream, memory, options),
        gradients(layout, values, stream, memory, options),
        shards(layout, values, gradients) {}
  ParamStore(const ParamStore&) = delete;  // its members refer to each other

  ModelLayout layout;
  ParamValues values;
  GradientSync gradients;
  OptimizerShards shards;
};

}  // namespace tandem

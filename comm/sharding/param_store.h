// All that training keeps of a model's parameters over the ranks. Inference needs only a layout and
// values.
#pragma once

#include "comm/sharding/optimizer_shards.h"

namespace tandem {

struct ParamStore {
  // Collective. `stream`: the compute stream. `host`: page-locked memory, for options.offload_run.
  // All references must outlive this. Throws what its members throw.
  ParamStore(std::vector<BlockParameters> blocks, const ModelGroups& groups, Stream& stream,
             Memory& memory, const StoreOptions& options, Memory* host = nullptr)
      : layout(std::move(blocks), groups, stream.device(), options),
        values(layout, stream, memory, options, host),
        gradients(layout, values, stream, memory, options),
        shards(layout, values, gradients, options) {}
  ParamStore(const ParamStore&) = delete;  // its members refer to each other

  ModelLayout layout;
  ParamValues values;
  GradientSync gradients;
  OptimizerShards shards;
};

}  // namespace tandem

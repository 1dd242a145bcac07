// All that training keeps of a model's parameters over the ranks. Inference needs only a layout and
// values.
#pragma once

#include "comm/sharding/optimizer_shards.h"

namespace tandem {

struct ParamStore {
  struct Options {  // passed on to the members
    int64_t bucket_bytes = int64_t{4} << 20;
    bool overlap = true;  // communicate during computation
    int zero = 0;         // ZeRO stage
    bool unused_is_error = true;
    DType dtype = DType::kF32;       // of parameter values: f32, bf16, fp16
    DType wire_dtype = DType::kF32;  // of gradients between ranks: f32, bf16
    int64_t exact_leaves = 0;
  };

  // Collective. `stream`: the compute stream. All references must outlive this. Throws what its
  // members throw.
  ParamStore(std::vector<BlockParameters> blocks, Hierarchy& data, Stream& stream, Memory& memory,
             const Options& options)
      : layout(std::move(blocks), data, stream.device(),
               {.zero = options.zero, .bucket_bytes = options.bucket_bytes}),
        values(layout, stream, memory, options.dtype, options.overlap),
        gradients(layout, values, stream, memory,
                  {.overlap = options.overlap,
                   .unused_is_error = options.unused_is_error,
                   .wire_dtype = options.wire_dtype,
                   .exact_leaves = options.exact_leaves}),
        shards(layout, values, gradients) {}
  ParamStore(const ParamStore&) = delete;  // its members refer to each other

  ModelLayout layout;
  ParamValues values;
  GradientSync gradients;
  OptimizerShards shards;
};

}  // namespace tandem

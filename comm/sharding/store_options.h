// How a model is kept on the ranks.
#pragma once

#include <cstdint>

#include "src/core/dtype.h"

namespace tandem {

enum class Sharing : uint8_t {
  kWorld,  // a sharded array has one shard for each rank of the group
  kNode,   // one for each rank of a node; all nodes hold the same (hybrid sharding)
};

inline constexpr int64_t kOffloadRun = int64_t{4} << 20;  // elements, where updates are offloaded

// Each class of a ParamStore takes what concerns it.
struct StoreOptions {
  int64_t bucket_bytes = int64_t{4} << 20;
  bool overlap = true;             // communicate during computation
  int zero = 0;                    // ZeRO stage
  bool matrices = false;           // the optimizer needs whole matrices (whole_matrices.h)
  bool unused_is_error = true;     // a parameter without gradient; false: its gradient is zero
  DType dtype = DType::kF32;       // of parameter values: f32, bf16, fp16
  DType wire_dtype = DType::kF32;  // of gradients between ranks: f32, bf16, int8
  bool gather_int8 = false;        // values are gathered in blocks of eight bits
  // 0: all is on the device. Otherwise masters of 16-bit values and the optimizer's state rest on
  // the host, and an update brings this many elements to the device at a time.
  int64_t offload_run = 0;
  // 0: floating-point sums. Otherwise exact sums (exact/exact_sums.h), and the number of
  // micro-batches of all ranks in a step.
  int64_t exact_micro_batches = 0;
};

}  // namespace tandem

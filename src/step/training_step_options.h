// What a TrainingStep is told once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "comm/sharding/store_options.h"
#include "optim/optimizer.h"
#include "src/autograd/attention_kernels.h"
#include "src/step/batch_plan.h"
#include "src/step/island_sync.h"

namespace tandem {

struct TrainingStepOptions {
  uint64_t seed = 1;             // of dropout
  BatchPlan batch{};             // over the ranks of the data group
  int64_t most_micro_steps = 0;  // an estimate runs no more of those in `batch`; 0: all
  bool recompute = false;        // blocks run again in the backward pass
  bool parks_inputs = false;     // on a GPU, with recompute: blocks' inputs wait on the host
  bool graph = false;            // on a GPU, a step is one CUDA graph
  AttentionKernels attention = AttentionKernels::kAuto;
  int64_t document_length = 0;  // Context::document_length
  bool halts = false;           // as in StepOptions
  bool exact = false;           // sums that do not depend on ranks and micro-batches
  double clip_norm = 0;         // 0: no clipping
  IslandOptions islands{};
  StoreOptions store{};  // except exact_micro_batches, which `exact` and `batch` set
  // Makes the optimizer of these shards.
  std::function<std::unique_ptr<Optimizer>(std::span<const Shard> shards,
                                           const OptimizerMemory& memory)>
      optimizer{};
};

}  // namespace tandem

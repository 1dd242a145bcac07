// The loss of a model over a validation set.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "layers/module.h"
#include "src/data/loader.h"

namespace tandem {

// A micro-batch in the memory that kernels read.
struct DeviceBatch {
  Tensor input;    // tokens i32 [B, T], or images f32 [B, H, W, C]
  Tensor targets;  // i32 [B * T] or [B]; -1: no target
};
DeviceBatch upload(Memory& memory, const MicroBatch& batch, const DatasetInfo& info);

struct Evaluation {
  double loss = 0;      // mean over targets, nats
  double accuracy = 0;  // share of targets that have the largest logit
  int64_t targets = 0;
};

// Sums a forward pass over `batches` validation micro-batches, batch b on rank b mod size.
// `read(b)` gives one. The sums are kept by batch and added in batch order, so that the result has
// the same bits for every number of ranks. Blocks until all ranks are done.
Evaluation evaluate(Model& model, Gate& gate, const DatasetInfo& info, Stream& stream,
                    Memory& memory, Communicator& communicator, int64_t batches,
                    const std::function<MicroBatch(int64_t)>& read);

}  // namespace tandem

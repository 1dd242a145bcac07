// What a model observes while training (BatchNorm): its memory, and once a step its sum over
// micro-batches and ranks and the update of the running averages.
#pragma once

#include <optional>

#include "comm/hierarchy.h"
#include "comm/sharding/exact_sums.h"
#include "layers/module.h"
#include "optim/step_control.h"

namespace tandem {

class BatchStatistics {
 public:
  // Gives the model's running statistics memory: mean 0 and variance 1, as before any training.
  // `exact_leaves`: as in ParamStore::Options. The references must outlive this.
  BatchStatistics(Model& model, Stream& stream, Memory& memory, int64_t exact_leaves = 0);

  // Around the micro-steps of a step, also of one that is run again.
  void begin_step();
  void end_micro_step();
  // Enqueues the sum over ranks; the caller waits for data.stream(). False when the sums
  // are exact and did not fit: the step must be run again.
  [[nodiscard]] bool reduce(const Hierarchy& data);
  // running = (1 - momentum) * running + momentum * mean over the step's micro-batches on all
  // ranks, with momentum 0.1, as in PyTorch: once a step, whatever the number of ranks and
  // micro-batches. What a skipped step observed is forgotten. Behind the reduction and the step's
  // verdict.
  void update(const StepState* state, int64_t micro_batches);

  ExactSums* exact() { return exact_ ? &*exact_ : nullptr; }

 private:
  Stream& stream_;
  Tensor sum_{}, running_{};  // f32 [all channels twice]; nothing for a model without statistics
  std::optional<ExactSums> exact_;
  std::vector<ExactSegment> segments_;
  Tensor exact_sum_{};    // i64
  bool written_ = false;  // exact_sum_ holds something of this step
};

}  // namespace tandem

// The statistics that a model observes while training (BatchNorm). Holds their memory, sums them
// over micro-batches and ranks, and updates the running averages once a step.
#pragma once

#include <optional>

#include "comm/sharding/exact/exact_sums.h"
#include "comm/sharding/group.h"
#include "layers/models/model.h"
#include "optim/step_control.h"

namespace tandem {

class BatchStatistics {
 public:
  // Gives the model's running statistics memory, with mean 0 and variance 1. `exact_micro_batches`:
  // as in StoreOptions. The references must outlive this.
  BatchStatistics(Model& model, Stream& stream, Memory& memory, int64_t exact_micro_batches = 0);

  // Call before the first micro-step, also of a step that is run again; and after each micro-step.
  void begin_step();
  void end_micro_step();
  // Enqueues the sum over ranks; later work on the compute stream sees it. False if the sums are
  // exact and did not fit: then the step must be run again.
  [[nodiscard]] bool reduce(const Group& data, Timeline& timeline);
  // running = (1 - momentum) * running + momentum * mean over the step's micro-batches on all
  // ranks, with momentum 0.1, as in PyTorch: once a step, whatever the number of ranks and
  // micro-batches. Statistics of a skipped step are dropped. Call after reduce() and after the
  // step's verdict.
  void update(const StepState* state, int64_t micro_batches);

  const Tensor& running() const { return running_; }  // f32, all of them; or empty
  ExactSums* exact() { return exact_ ? &*exact_ : nullptr; }

 private:
  Stream& stream_;
  Tensor sum_{}, running_{};  // f32 [all channels twice]; empty for a model without statistics
  std::optional<ExactSums> exact_;
  std::vector<Extent> segments_;
  Tensor exact_sum_{};    // i64
  bool written_ = false;  // exact_sum_ holds values of this step
};

}  // namespace tandem

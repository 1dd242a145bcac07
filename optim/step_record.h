// What a step leaves behind in the memory of the device, and how it reaches the host: one step
// late, so that the host never waits inside a step.
#pragma once

#include <span>

#include "optim/step_control.h"
#include "src/core/shard.h"

namespace tandem {

class StepRecord {
 public:
  // `losses`: micro-batches of this rank in a step. `staging`: host memory, page-locked for a GPU;
  // must outlive this.
  StepRecord(Stream& stream, Memory& memory, Memory& staging, int64_t losses,
             const StepOptions& options);

  // In the memory of the device.
  StepState* state() const { return reinterpret_cast<StepState*>(state_.raw()); }

  // loss(micro_step) = the sum of losses, f32.
  void add_up(const Stream& stream, int64_t micro_step, const Tensor& losses) const;
  // The norm of the gradients and what follows from it, in state(). The same on all ranks when the
  // gradients are.
  void decide(const Stream& stream, std::span<const Shard> shards) const;
  void restore(Stream& stream, const StepState& state);

  // The host's copy of a finished step.
  struct Copy {
    Event done;  // the tensors may be read
    Tensor state, losses;
    const StepState& step_state() const { return *reinterpret_cast<StepState*>(state.raw()); }
  };
  Copy copy_to_host(Stream& stream);

 private:
  Memory& staging_;
  StepOptions options_;
  Tensor state_;    // u8 [sizeof(StepState)]
  Tensor losses_;   // f64: sums of the losses of each micro-batch's targets
  Tensor scratch_;  // f64
};

}  // namespace tandem

// What a step leaves behind in the memory of the device, and how it reaches the host: one step
// late, so that the host never waits inside a step.
//
// The figures of a step are one small array, the same on all ranks once it was summed over them:
// the squared norm of the gradients, which is not finite if one of them is not, and the loss of
// each micro-batch. A rank leaves those of others zero, so that adding them rounds nothing.
#pragma once

#include <span>

#include "optim/step_control.h"
#include "src/core/tensor.h"

namespace tandem {

class StepRecord {
 public:
  // `micro_batches`: of all ranks in a step. `staging`: host memory, page-locked for a GPU; must
  // outlive this.
  StepRecord(Stream& stream, Memory& memory, Memory& staging, int64_t micro_batches,
             const StepOptions& options);

  // In the memory of the device.
  StepState* state() const { return reinterpret_cast<StepState*>(state_.raw()); }
  // f64 [1 + micro_batches]: squared norm, losses. To be summed over ranks before decide().
  const Tensor& figures() const { return figures_; }
  Tensor squared_norm() const { return figures_.slice(0, 1); }
  const Tensor& scratch() const { return scratch_; }  // f64 [kReduceScratch], for sums

  void begin_step(Stream& stream);  // all figures zero
  // The loss of a micro-batch, numbered over all ranks, is the sum of `losses`, f32.
  void add_up(const Stream& stream, int64_t micro_batch, const Tensor& losses) const;
  // What follows from the figures, in state().
  void decide(const Stream& stream) const;
  void restore(Stream& stream, const StepState& state);

  // The host's copy of a finished step.
  struct Copy {
    Event done;  // the tensors may be read
    Tensor state, figures;
    const StepState& step_state() const { return *reinterpret_cast<StepState*>(state.raw()); }
    double loss() const;  // sum over the targets of the global batch, in the order of micro-batches
  };
  Copy copy_to_host(Stream& stream);

 private:
  Memory& staging_;
  StepOptions options_;
  Tensor state_;  // u8 [sizeof(StepState)]
  Tensor figures_, zeros_;
  Tensor scratch_;  // f64
};

}  // namespace tandem

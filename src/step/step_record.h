// The numbers of a step in device memory: those that the host sends, and the results that the step
// leaves there. The host reads the results one step late, so that it never waits inside a step.
//
// The figures of a step are one small array, which is summed over ranks: the squared norm of the
// gradients, which is not finite if a gradient is not, and the loss of each micro-batch. A rank
// leaves the losses of other ranks' micro-batches zero, so that summing losses rounds nothing.
#pragma once

#include <span>

#include "optim/step_control.h"
#include "src/device/tensor.h"
#include "src/step/staged_copies.h"

namespace tandem {

class StepRecord {
 public:
  struct MicroBatches {
    int64_t all = 1;           // of all ranks that sum them, in a step
    int64_t first = 0;         // this rank's first, by number
    int64_t samples = 1;       // in each
    int64_t first_sample = 0;  // of this rank's first, in the global batch
  };
  // `staging`: host memory, page-locked for a GPU. Stream and staging must outlive this.
  StepRecord(Stream& stream, Memory& memory, Memory& staging, const MicroBatches& micro_batches,
             const StepOptions& options);

  // In the memory of the device.
  StepNumbers* numbers() const { return reinterpret_cast<StepNumbers*>(numbers_.raw()); }
  StepState* state() const { return reinterpret_cast<StepState*>(results_.raw()); }
  // f64 [1 + micro_batches]: squared norm, losses. Sum it over ranks before decide().
  const Tensor& figures() const { return figures_; }
  Tensor squared_norm() const { return figures_.slice(0, 1); }
  const Tensor& scratch() const { return scratch_; }  // f64 [kReduceScratch], for sums

  // Brings the numbers of a step to the device: seed, step, lr and mean_factor; the others are
  // computed. Call it before begin_step(). Host memory that it takes is free again after
  // copy_to_host().
  void send(StepNumbers numbers);
  // Sets all figures to zero.
  void begin_step(Stream& stream) const;
  // Call after the backward pass of this rank's next micro-batch. Its loss is the sum of `losses`,
  // f32.
  void end_micro_step(const Stream& stream, const Tensor& losses) const;
  // Updates state() from the figures.
  void decide(const Stream& stream) const;
  void restore(Stream& stream, const StepState& state);

  // The host's copy of a finished step.
  struct Copy {
    Tensor state, figures, stamps;
    Event done;  // the tensors may be read
    const StepState& step_state() const { return *reinterpret_cast<StepState*>(state.raw()); }
    double loss() const;  // sum over the targets of the global batch, in the order of micro-batches
  };
  // `stamps`: i64 on the device, of the timeline of a graph; may be nothing.
  Copy copy_to_host(const Tensor& stamps = {});

 private:
  Memory& staging_;
  MicroBatches micro_batches_;
  StepOptions options_;
  StagedCopies copies_;
  Tensor numbers_;  // u8 [sizeof(StepNumbers)]
  Tensor results_;  // f64: the state, then the figures, so that one copy brings both to the host
  Tensor figures_, zeros_;
  Tensor loss_;     // f64 [1]: of the current micro-batch
  Tensor scratch_;  // f64
};

}  // namespace tandem

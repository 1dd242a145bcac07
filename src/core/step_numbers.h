// The numbers of a step, in the memory of the device. Kernels read them there, so that the host
// enqueues the same work with the same arguments in every step: a step can be captured and
// replayed.
#pragma once

#include <cstdint>

namespace tandem {

// Written once a step by the host; the device itself counts micro-steps on. Aligned so that a
// kernel reads it in 16-byte pieces.
struct alignas(16) StepNumbers {
  uint64_t seed = 0;  // of the run
  uint64_t step = 0;  // updates done before
  double lr = 0;
  float mean_factor = 1;     // 1 / targets of the global batch
  float loss_gradient = 1;   // ... times the loss scale: what the backward pass starts from
  int64_t first_sample = 0;  // of this micro-batch, in the global batch
  int64_t micro_step = 0;    // of this rank
};

}  // namespace tandem

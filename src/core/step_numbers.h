// The numbers that change from step to step, in device memory. Kernels read them there, so the host
// enqueues the same kernels with the same arguments in every step. A step can thus be captured and
// replayed.
#pragma once

#include <cstdint>

namespace tandem {

// The host writes it once a step; after each micro-step the device itself advances first_sample and
// micro_step. Aligned so that a kernel can read it with 16-byte accesses.
struct alignas(16) StepNumbers {
  uint64_t seed = 0;  // of the run
  uint64_t step = 0;  // updates done before this one
  double lr = 0;
  float mean_factor = 1;     // 1 / targets of the global batch
  float loss_gradient = 1;   // mean_factor times the loss scale: what backward starts from
  int64_t first_sample = 0;  // first sample of this micro-batch in the global batch
  int64_t micro_step = 0;    // number of this micro-step on this rank
};

}  // namespace tandem

// The learning rate as a pure function of the step: nothing to save or restore.
#pragma once

#include <cstdint>

namespace tandem {

enum class ScheduleKind : uint8_t { kConstant, kCosine, kLinear, kWsd };

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 1e-3;          // the peak, reached at the end of the warm-up
  double min_lr = 0;         // reached at `steps` and kept after it; not used by kConstant
  int64_t warmup_steps = 0;  // 0: starts at the peak
  int64_t steps = 0;         // length of the run, the warm-up included
  int64_t decay_steps = 0;   // of kWsd, the last of the run; 0: a fifth of it
};

// The learning rate of update `step`, counted from 0. As in nanoGPT, with w = warmup_steps:
//     step < w:   lr * (step + 1) / (w + 1)
//     otherwise, with r = (step - w) / (steps - w), at most 1:
//       constant: lr
//       cosine:   min_lr + (lr - min_lr) * (1 + cos(pi r)) / 2     (Loshchilov & Hutter 2017)
//       linear:   min_lr + (lr - min_lr) * (1 - r)
//       wsd:      lr up to the last decay_steps, in which it falls like linear (warm-up, stable,
//                 decay; Hu et al. 2024, arXiv:2404.06395)
double lr_at(const ScheduleOptions& options, int64_t step);

}  // namespace tandem

// Decides on the device whether and how a step's gradients change the parameters: loss scale,
// finiteness and clipping. The host enqueues and does not wait; it reads the state when it writes
// metrics and checkpoints.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "src/core/step_numbers.h"
#include "src/device/dispatch.h"

namespace tandem {

// One per run, in device memory, the same bits on every rank; kernels read it where they need it.
// Aligned so that a kernel reads it in 16-byte pieces.
struct alignas(16) StepState {
  // The sum of squares of all gradients of all ranks, loss scale included. NaN or infinite if a
  // gradient is.
  double squared_norm = 0;
  double grad_norm = 0;     // without the loss scale; NaN or infinite if a gradient was
  int64_t updates = 0;      // applied so far, this step's included: Adam's t
  int64_t skipped = 0;      // steps without an update so far
  int64_t clean_steps = 0;  // since the loss scale last changed or a step was skipped
  float loss_scale = 1;     // of the next backward pass
  float grad_scale = 1;     // gradients are multiplied by it: clip factor / loss scale
  int32_t apply = 0;        // 0: a gradient was not finite, or halted: this step updates nothing
  int32_t exhausted = 0;    // 1: an overflow at the smallest loss scale; stays 1
  int32_t halted = 0;       // 1: StepOptions::halts, and a gradient was not finite; stays 1
};

struct StepOptions {
  double clip_norm = 0;  // largest norm of the gradients; 0: no clipping
  // No step is applied after one whose gradient was not finite, so that all stays as it was
  // before that one until the host looks. Not for dynamic loss scaling, which goes on.
  bool halts = false;
  // Dynamic loss scaling, for fp16 (Micikevicius et al. 2018). A scale that is a power of two
  // changes no bit of a gradient that neither overflows nor underflows.
  bool dynamic_scale = false;  // false: the loss scale is 1
  float initial_scale = 65536;
  float growth = 2;             // factor after growth_steps clean steps
  int64_t growth_steps = 2000;  // at least 1
  float backoff = 0.5F;         // factor at an overflow, in (0, 1)
  float smallest_scale = 1;     // an overflow at this scale sets `exhausted`
};

// The factor all gradients are multiplied by, so that their norm is at most `max_norm`:
//     min(1, max_norm / (total_norm + 1e-6))
// as torch.nn.utils.clip_grad_norm_ (Pascanu et al. 2013). total_norm: the 2-norm of all gradients
// of all ranks together. max_norm: finite, at least 0; 0: no clipping, the factor is 1. If
// total_norm is NaN, the factor is NaN; if it is infinite, 0. The caller decides about such steps.
TANDEM_HOST_DEVICE inline double clip_factor(double total_norm, double max_norm) {
  if (max_norm == 0) {
    return 1;
  }
  const double factor = max_norm / (total_norm + 1e-6);
  return factor > 1 ? 1 : factor;  // in this order NaN stays NaN
}

// begun: the numbers of the first micro-step, with the loss scale of `state`. next_micro_step:
// those of the next one, after `samples` samples.
TANDEM_HOST_DEVICE inline StepNumbers begun(StepNumbers numbers, const StepState& state) {
  numbers.loss_gradient = numbers.mean_factor * state.loss_scale;
  return numbers;
}
TANDEM_HOST_DEVICE inline StepNumbers next_micro_step(StepNumbers numbers, int64_t samples) {
  numbers.first_sample += samples;
  ++numbers.micro_step;
  return numbers;
}

// Throws Error(kConfig) unless 0 <= value < below.
inline void require_in_range(std::string_view key, double value, double below) {
  if (!(value >= 0 && value < below)) {
    fail(ExitCode::kConfig, str(key, " = ", value, ": it must be at least 0",
                                std::isfinite(below) ? str(" and below ", below) : ""));
  }
}

// The state before the first step. Throws Error(kConfig) if clip_norm, which users set, is out of
// range.
StepState first_state(const StepOptions& options);

// The state after a step. `state`: the one before, but with squared_norm of this step. f64
// arithmetic. A loss scale that would grow beyond f32 stays as it is.
TANDEM_HOST_DEVICE inline StepState decided(StepState state, const StepOptions& options) {
  const double scale = state.loss_scale;
  state.grad_norm = std::sqrt(state.squared_norm) / scale;
  const bool is_finite = std::isfinite(state.squared_norm);
  state.halted |= !is_finite && options.halts && !options.dynamic_scale ? 1 : 0;
  state.apply = is_finite && state.halted == 0 ? 1 : 0;
  if (state.apply == 0) {
    state.grad_scale = 0;
    state.clean_steps = 0;
    ++state.skipped;
    if (options.dynamic_scale) {
      const float lower = state.loss_scale * options.backoff;
      state.exhausted |= state.loss_scale <= options.smallest_scale ? 1 : 0;
      state.loss_scale = lower > options.smallest_scale ? lower : options.smallest_scale;
    }
    return state;
  }
  state.grad_scale = static_cast<float>(clip_factor(state.grad_norm, options.clip_norm) / scale);
  ++state.updates;
  ++state.clean_steps;
  if (options.dynamic_scale && state.clean_steps >= options.growth_steps) {
    const float higher = state.loss_scale * options.growth;
    state.loss_scale = std::isfinite(higher) ? higher : state.loss_scale;
    state.clean_steps = 0;
  }
  return state;
}

namespace kernels {

// Call before the first micro-step: sets numbers[0].loss_gradient from the loss scale in state[0].
void begin_step(Cpu, StepNumbers* numbers, const StepState* state);
void begin_step(Cuda, StepNumbers* numbers, const StepState* state);

// Call after a micro-step of `samples` samples: losses[numbers[0].micro_step] = loss[0], then
// advances numbers[0] to the next one.
void end_micro_step(Cpu, StepNumbers* numbers, int64_t samples, const double* loss, double* losses);
void end_micro_step(Cuda, StepNumbers* numbers, int64_t samples, const double* loss,
                    double* losses);

// state[0] = decided(state[0], options) with the squared norm at `squared_norm`; both in device
// memory.
void decide_step(Cpu, StepState* state, const double* squared_norm, const StepOptions& options);
void decide_step(Cuda, StepState* state, const double* squared_norm, const StepOptions& options);

}  // namespace kernels

}  // namespace tandem

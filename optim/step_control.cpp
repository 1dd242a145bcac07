#include "optim/step_control.h"

namespace tandem {

StepState first_state(const StepOptions& options) {
  require_in_range("optim.clip_norm", options.clip_norm, INFINITY);
  return {.loss_scale = options.dynamic_scale ? options.initial_scale : 1};
}

namespace kernels {

void begin_step(Cpu, StepNumbers* numbers, const StepState* state) {
  *numbers = begun(*numbers, *state);
}

void end_micro_step(Cpu, StepNumbers* numbers, int64_t samples, const double* loss,
                    double* losses) {
  losses[numbers->micro_step] = *loss;
  *numbers = next_micro_step(*numbers, samples);
}

void decide_step(Cpu, StepState* state, const double* squared_norm, const StepOptions& options) {
  state->squared_norm = *squared_norm;
  *state = decided(*state, options);
}

}  // namespace kernels

}  // namespace tandem

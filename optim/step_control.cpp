#include "optim/step_control.h"

namespace tandem {

namespace {

void require_option(bool ok, std::string_view name, double value, std::string_view range) {
  if (!ok) {
    fail(ExitCode::kConfig, str(name, " = ", value, ": it must be ", range));
  }
}

}  // namespace

StepState first_state(const StepOptions& options) {
  require_option(std::isfinite(options.clip_norm) && options.clip_norm >= 0, "optim.clip_norm",
                 options.clip_norm, "at least 0");
  if (!options.dynamic_scale) {
    return {};
  }
  require_option(options.smallest_scale > 0, "smallest_scale", options.smallest_scale, "above 0");
  require_option(
      std::isfinite(options.initial_scale) && options.initial_scale >= options.smallest_scale,
      "initial_scale", options.initial_scale, "finite and at least smallest_scale");
  require_option(options.growth >= 1, "growth", options.growth, "at least 1");
  require_option(options.growth_steps >= 1, "growth_steps",
                 static_cast<double>(options.growth_steps), "at least 1");
  require_option(options.backoff > 0 && options.backoff < 1, "backoff", options.backoff,
                 "above 0 and below 1");
  return {.loss_scale = options.initial_scale};
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

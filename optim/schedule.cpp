#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/core/error.h"

namespace tandem {

namespace {

// The step from which the learning rate falls.
int64_t first_lower_step(const ScheduleOptions& options) {
  const int64_t decay = options.decay_steps > 0 ? options.decay_steps : options.steps / 5;
  return options.kind == ScheduleKind::kWsd ? std::max(options.warmup_steps, options.steps - decay)
                                            : options.warmup_steps;
}

}  // namespace

double lr_at(const ScheduleOptions& options, int64_t step) {
  require(step >= 0 && options.warmup_steps >= 0,
          [&] { return str("lr_at: step ", step, ", warm-up ", options.warmup_steps); });
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps + 1);
  }
  const int64_t first = first_lower_step(options);
  if (options.kind == ScheduleKind::kConstant || step < first) {
    return options.lr;
  }
  if (step >= options.steps) {
    return options.min_lr;
  }
  const double ratio =
      static_cast<double>(step - first) / static_cast<double>(options.steps - first);
  const double height = options.kind == ScheduleKind::kCosine
                            ? 0.5 * (1 + std::cos(std::numbers::pi * ratio))
                            : 1 - ratio;
  return options.min_lr + height * (options.lr - options.min_lr);
}

}  // namespace tandem

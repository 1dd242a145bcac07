#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "src/core/error.h"

namespace tandem {

double lr_at(const ScheduleOptions& options, int64_t step) {
  require(step >= 0 && options.warmup_steps >= 0,
          [&] { return str("lr_at: step ", step, ", warm-up ", options.warmup_steps); });
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps + 1);
  }
  if (options.kind == ScheduleKind::kConstant) {
    return options.lr;
  }
  if (step >= options.steps) {
    return options.min_lr;
  }
  const double ratio = static_cast<double>(step - options.warmup_steps) /
                       static_cast<double>(options.steps - options.warmup_steps);
  const double height = options.kind == ScheduleKind::kCosine
                            ? 0.5 * (1 + std::cos(std::numbers::pi * ratio))
                            : 1 - ratio;
  return options.min_lr + height * (options.lr - options.min_lr);
}

}  // namespace tandem

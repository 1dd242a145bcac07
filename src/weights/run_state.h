// What a run remembers beside its tensors. A resumed run goes on as if it had not stopped.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "optim/step_control.h"
#include "src/io/checkpoint/manifest.h"

namespace tandem {

struct RunState {
  struct LossScale {
    float value = 1;
    int64_t clean_steps = 0;  // as in StepState
    bool operator==(const LossScale&) const = default;
  };

  int64_t step = 0;                            // steps done
  int64_t skipped = 0;                         // steps without an update: not finite
  int64_t skipped_batches = 0;                 // steps without a batch: train.skip_batches
  std::optional<LossScale> loss_scale{};       // where it is dynamic
  std::map<std::string, int32_t> exponents{};  // of exact sums: "param/NAME", "stat/NUMBER"
  std::optional<double> val_loss{};            // at `step`, when it was measured
  double best_val_loss = std::numeric_limits<double>::infinity();  // infinity: none so far

  // take() copies skipped steps and the loss scale from a StepState; step_state() is the StepState
  // from which the next step starts. Without a loss scale, that has the first one of `options`.
  void take(const StepState& state, const StepOptions& options);
  StepState step_state(const StepOptions& options) const;

  // The manifest's `step`, `schedule` and `validation_loss`; its other fields are not touched.
  void write(Manifest& manifest) const;
  // Error kData if the manifest does not belong to a run.
  static RunState read(const Manifest& manifest);

  bool operator==(const RunState&) const = default;
};

}  // namespace tandem

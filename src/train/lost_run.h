// A run that ends because gradients are not finite, or overflow. Its state is the one before that
// step. An island that has lost a step updates nothing more, and the run ends when all islands
// meet.
#pragma once

#include <functional>
#include <string>

#include "src/device/ranks/control.h"
#include "src/step/training_step.h"

namespace tandem {

class LostRun {
 public:
  // Looks at a step that has ended. `island`: of this rank, for the message; -1: there is only one.
  // `run_again`: runs that step once more, if it is the first that was lost.
  void look(int64_t step, const StepState& state, const StepOptions& options, int island,
            const std::function<LostStep()>& run_again);
  bool found() const { return !what_.empty(); }
  // Collective among `job`, once found() on any rank. Throws the AgreedError(kNumerical) that ends
  // the run. `last_checkpoint`: for the message.
  [[noreturn]] void end(Control& job, const std::string& last_checkpoint) const;

 private:
  std::string what_{}, remedy_{};
};

}  // namespace tandem

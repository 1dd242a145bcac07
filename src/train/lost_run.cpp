#include "src/train/lost_run.h"

#include <algorithm>

#include "src/device/ranks/agreement.h"

namespace tandem {

void LostRun::look(int64_t step, const StepState& state, const StepOptions& options, int island,
                   const std::function<LostStep()>& run_again) {
  if (found() || (state.halted == 0 && state.exhausted == 0)) {
    return;
  }
  const std::string place =
      island < 0 ? str("step ", step) : str("step ", step, ", island ", island);
  if (state.exhausted != 0) {
    what_ = str(place, ": the gradients overflow fp16 even with a loss scale of ",
                options.smallest_scale);
    remedy_ = "lower optim.lr, or set train.precision = bf16";
    return;
  }
  const LostStep lost = run_again();
  what_ = str(place, ": the gradient is not finite: ", lost.text);
  remedy_ = lost.happens_again
                ? "lower optim.lr, set optim.clip_norm, or go on with train.on_nonfinite = skip"
                : "start again, and look for a machine that is at fault";
}

void LostRun::end(Control& job, const std::string& last_checkpoint) const {
  const std::vector<std::string> all = job.all_gather(
      found() ? str(what_, "; last checkpoint: ", last_checkpoint, "; ", remedy_) : "");
  throw AgreedError(ExitCode::kNumerical,
                    *std::ranges::find_if(all, [](const auto& text) { return !text.empty(); }));
}

}  // namespace tandem

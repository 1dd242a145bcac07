// The islands of a job, as the training loop sees them: when they meet, and what they agree on
// beside tensors (src/step/island_sync.h). With one island nothing here does anything.
#pragma once

#include <functional>
#include <optional>

#include "src/machine/machine.h"
#include "src/step/training_step.h"
#include "src/weights/run_state.h"

namespace tandem {

class Islands {
 public:
  // The references must outlive this.
  Islands(TrainingStep& training, Machine& machine)
      : training_(training), sync_(training.islands()), machine_(machine) {}

  // This rank's; -1 if there is only one.
  int number() const { return sync_ ? machine_.mesh()->index(Axis::kIslands) : -1; }
  // Whether all ranks of the job agree on what follows this step, not only those of an island.
  bool all_meet_after(int64_t step) const { return !sync_ || sync_->meet_after(step); }
  // They are alike, because all have loaded the state of this step.
  void take_as_settled(int64_t step) {
    if (sync_) {
      sync_->take_as_settled(step);
    }
  }
  // Collective. Exchanges what is due after a step. `settles`: so that the islands are alike, for a
  // validation or a checkpoint. `look`: called before values change, which a lost step must not
  // see.
  std::optional<IslandSync::Drift> end_step(int64_t step, bool settles,
                                            const std::function<void()>& look);
  // Collective, when no step is running. Makes the islands alike, as if the run had been resumed
  // from a checkpoint that island 0 had written: all get its loss scale, skipped steps and
  // exponents of exact sums, too.
  void settle(RunState& state);
  // The mean over targets of a step's losses. It is that of all islands, and the call is
  // collective, if all meet after the step; otherwise it is that of this island.
  double mean_loss(int64_t step, double sum, double targets) const;
  // Bytes that they have exchanged; null if there is only one.
  const WireCount* exchanged() const { return sync_ ? &sync_->exchanged() : nullptr; }

 private:
  TrainingStep& training_;
  IslandSync* sync_;
  Machine& machine_;
};

}  // namespace tandem

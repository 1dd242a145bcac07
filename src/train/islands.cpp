#include "src/train/islands.h"

#include <array>

#include "src/weights/snapshot.h"

namespace tandem {

std::optional<IslandSync::Drift> Islands::end_step(int64_t step, bool settles,
                                                   const std::function<void()>& look) {
  if (!sync_ || !(settles || sync_->acts_after(step))) {
    return std::nullopt;
  }
  look();
  sync_->end_step(step);
  if (settles) {
    sync_->settle(step);
  }
  return sync_->take_drift();
}

void Islands::settle(RunState& state) {
  if (!sync_) {
    return;
  }
  sync_->settle(state.step);
  state.exponents = exponents_of(training_);
  Manifest manifest;
  state.write(manifest);
  Control& job = machine_.mesh()->job();
  std::vector<double> numbers;  // all ranks have the same names, in the same order
  for (const auto& [name, number] : manifest.schedule) {
    numbers.push_back(job.rank() == 0 ? number : 0);
  }
  numbers = job.sum(numbers);
  auto number = numbers.begin();
  for (auto& [name, value] : manifest.schedule) {
    value = *number++;
  }
  state = RunState::read(manifest);
  load_exponents(state.exponents, training_);
  training_.record().restore(machine_.stream, state.step_state(training_.options()));
}

double Islands::mean_loss(int64_t step, double sum, double targets) const {
  if (!sync_ || !sync_->meet_after(step)) {
    return sum / targets;
  }
  const std::vector<double> all =
      machine_.mesh()->islands()->control().sum(std::array{sum, targets});
  return all[0] / all[1];
}

}  // namespace tandem

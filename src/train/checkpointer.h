// The checkpoints of a run: what it goes on from, when it wrote the last one, which ones it keeps.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "layers/module.h"
#include "src/data/dataset.h"
#include "src/settings/config.h"
#include "src/step/training_step.h"
#include "src/train/machine.h"
#include "src/train/run_state.h"

namespace tandem {

class Checkpointer {
 public:
  // The references must outlive this.
  Checkpointer(const Config& config, const Dataset& dataset, Machine& machine, Model& model,
               TrainingStep& training);

  struct Start {
    RunState state{};
    std::string resumed_from{};  // empty: a new run,
    std::string weights_from{};  // which has the weights of this checkpoint, or (empty) its own
  };
  // Collective. Loads what the settings say: the run's newest checkpoint that is whole, another
  // one, or weights alone. AgreedErrors: kData for what cannot be read, kConfig for a checkpoint of
  // other settings.
  Start resume();
  // For one rank: checkpoints after the step that a run goes on from move aside.
  void discard_after(int64_t step) const;

  // Collective, after `state.step` has ended. All ranks write, and rank 0 commits once every file
  // is whole; then it removes what checkpoint.keep does not cover. A failure leaves the older
  // checkpoints as they were.
  void save(const RunState& state);
  // Collective. The last saved checkpoint is that of the best validation loss.
  void keep_as_best();

  int64_t saved_step() const { return saved_step_; }  // -1: none
  const std::string& path() const { return path_; }   // of the checkpoint of saved_step(), or empty
  // checkpoint.every_minutes have passed, by this rank's clock.
  bool overdue() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<std::string> candidates() const;
  bool is_whole(const std::function<void()>& work) const;
  bool load(const std::string& checkpoint, RunState& state);
  void load_weights_of(const std::string& checkpoint);
  Manifest manifest(RunState state) const;

  const Config& config_;
  const Dataset& dataset_;
  Control& job_;
  Stream& stream_;
  Model& model_;
  TrainingStep& training_;
  std::string checkpoints_;  // the directory
  int64_t saved_step_ = -1;
  std::string path_;
  Clock::time_point saved_at_{};  // or resumed
};

}  // namespace tandem

// When a run saves, what becomes of a save that fails, and which checkpoint is the best.
#pragma once

#include <functional>
#include <string>

#include "src/report/run_log.h"
#include "src/stop/stop_signal.h"
#include "src/train/checkpointer.h"
#include "src/weights/run_directory.h"

namespace tandem {

class Saver {
 public:
  // Runs work(), whose time belongs to no step, and returns its seconds.
  using LeaveOut = std::function<double(const std::function<void()>& work)>;

  // Collective. `state`: the run's. Its best validation loss goes back to that of checkpoints/best
  // if the weights that have it cannot be saved. All references must outlive this.
  Saver(const Config& config, const Dataset& dataset, Machine& machine, Model& model,
        TrainingStep& training, const RunDirectory& directory, StopSignal& stop, RunState& state,
        LeaveOut leave_out);

  // Collective. Does what Checkpointer::resume() does, and takes over the state that it loaded.
  Checkpointer::Start resume();
  void log_to(RunLog& log) { log_ = &log; }  // rank 0

  bool is_due() const {  // by checkpoint.every_steps
    return config_.every_steps > 0 && state_.step % config_.every_steps == 0;
  }
  // Collective. Call it when no step is running. A step that is saved for several reasons (due,
  // best, last) is written once; if that failed, only the end of the run tries again. If the save
  // before is still being written, this waits for it. `is_best`: it becomes the best one, too.
  void save(bool is_best = false);
  // Collective. If the validation has the least loss so far, this saves, and the checkpoint becomes
  // the best one. If the step was saved before, and committed, its manifest gets the loss instead,
  // after the lines of the validation are on the disk.
  void after_validation();
  // Collective. Ends the save that is being written, if any.
  void commit();
  // No save comes after the one of this step.
  void expect_end() { finishing_ = true; }
  // Collective. Ends all that is under way.
  void finish();

  const Checkpointer& checkpoints() const { return checkpointer_; }
  std::string last_checkpoint() const {
    return checkpointer_.path().empty() ? "none" : checkpointer_.path();
  }

 private:
  bool is_saved() const { return checkpointer_.newest_step() == state_.step; }
  void note_validation();
  void tolerate(const std::function<void()>& saving);

  const CheckpointConfig& config_;
  const RunDirectory& directory_;
  Control& job_;
  StopSignal& stop_;
  RunState& state_;
  LeaveOut leave_out_;
  Checkpointer checkpointer_;
  RunLog* log_ = nullptr;

  RunState saving_{};       // what the latest save holds
  double stall_s_ = 0;      // how long that save has kept training waiting
  int failed_saves_ = 0;    // since one succeeded
  double best_saved_ = 0;   // validation loss of checkpoints/best
  bool finishing_ = false;  // no save comes after the one of this step
};

}  // namespace tandem

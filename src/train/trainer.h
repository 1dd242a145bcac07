// The training loop: data -> step -> metrics -> validation -> checkpoint.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "comm/world.h"
#include "src/data/loader.h"
#include "src/inference/evaluation.h"
#include "src/machine/machine.h"
#include "src/report/metrics_window.h"
#include "src/report/run_log.h"
#include "src/settings/config.h"
#include "src/settings/step_ranges.h"
#include "src/step/training_step.h"
#include "src/stop/stop_file.h"
#include "src/stop/stop_signal.h"
#include "src/train/checkpointer.h"
#include "src/train/model_views.h"
#include "src/train/votes.h"
#include "src/weights/make_model.h"
#include "src/weights/run_directory.h"

namespace tandem {

class Trainer {
 public:
  // Collective. Opens the dataset, builds the model, and resumes from the newest checkpoint. Errors
  // that all ranks see are AgreedErrors.
  Trainer(const Config& config, World& world);

  // Trains to the last step, then saves. Only says so if the checkpoint is of that step or later.
  // kStopped if a signal, run.stop_file or a spot notice asked to stop; then it saves too.
  ExitCode run();

 private:
  // The next step, and what all ranks agreed on before it.
  struct StepPlan {
    std::vector<MicroBatch> batch{};
    bool skips = false;  // the step has no batch: train.skip_batches
    Decision agreed{};
  };

  // A step that is enqueued. Its metrics are read when the next one is enqueued, too.
  struct Pending {
    int64_t step = 0;  // updates done after it
    double lr = 0, targets = 0;
    std::vector<MicroBatch> batch{};  // in case the step must be run again
    Timeline timeline{};              // of this step
    StepRecord::Copy record{};
    MetricsWindow::Mark end{};
  };

  void open_data(bool verifies);
  void build(int ranks_here);
  void resume();
  void start_loader();
  RunSummary summary() const;

  template <class F>
  auto during(Part part, F&& work) {
    return training_->timeline().during(machine_.stream, part, std::forward<F>(work));
  }
  // Runs work(), whose time belongs to no step, and returns its seconds. `reason`: for the progress
  // bar; empty: too short to be shown.
  template <class F>
  double leave_out(Part part, std::string_view reason, F&& work) {
    const auto start = MetricsWindow::Clock::now();
    RunLog* shown = reason.empty() ? nullptr : log_.get();
    if (shown) {
      shown->pause(reason);
    }
    during(part, work);
    if (shown) {
      shown->go_on();
    }
    const auto time = MetricsWindow::Clock::now() - start;
    window_->leave_out_time(time);
    return std::chrono::duration<double>(time).count();
  }
  StepPlan plan_step();
  void step(std::vector<MicroBatch> batch, double targets);
  TrainingStep::Input input_of(const Pending& step);
  void skip();
  void settle(size_t running = 0);
  void check(const Pending& done);
  void log_step(const Pending& done, const StepState& state);
  void rest();
  void validate();
  void save();
  void commit();
  void tolerate(const std::function<void()>& saving);
  std::string last_checkpoint() const {
    return checkpointer_->path().empty() ? "none" : checkpointer_->path();
  }
  ExitCode finish(bool stopped);

  Config config_;
  Machine machine_;
  Control& job_;
  Hierarchy& data_;
  BatchPlan batch_;
  StepRanges skip_batches_;
  RunDirectory directory_;

  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<TrainingStep> training_;
  std::unique_ptr<Uploader> upload_;
  std::unique_ptr<ModelViews> views_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<MetricsWindow> window_;  // since the last logged step
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<RunLog> log_;  // rank 0
  StopSignal stop_signal_;
  StopFile stop_file_;
  std::unique_ptr<SpotWatch> spot_watch_;  // of the first rank on each host

  RunState saving_;         // what the latest save holds
  double stall_s_ = 0;      // how long that save has kept training waiting
  int failed_saves_ = 0;    // since one succeeded
  double last_scale_ = 1;   // loss scale of the last settled step
  double best_saved_ = 0;   // validation loss of checkpoints/best
  bool is_done_ = false;    // the checkpoint is of the last step, or a later one
  bool finishing_ = false;  // no save comes after the one of this step

  RunState state_;  // of the last settled step, except `step`: that one may still be running
  std::deque<Pending> pending_;  // oldest first
};

}  // namespace tandem

// The training loop: data -> step -> metrics -> validation -> checkpoint.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "comm/world.h"
#include "src/data/loader.h"
#include "src/estimate/memory_check.h"
#include "src/inference/choice_evaluation.h"
#include "src/inference/evaluation.h"
#include "src/machine/choices.h"
#include "src/machine/machine.h"
#include "src/report/metrics_window.h"
#include "src/report/run_log.h"
#include "src/settings/config.h"
#include "src/settings/step_ranges.h"
#include "src/step/training_step.h"
#include "src/stop/stop_requests.h"
#include "src/train/islands.h"
#include "src/train/lost_run.h"
#include "src/train/model_views.h"
#include "src/train/run_choices.h"
#include "src/train/saver.h"
#include "src/train/tracing.h"
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
    std::optional<IslandSync::Drift> drift{};
    MetricsWindow::Mark end{};
  };

  void open_data(bool verifies);
  void build(int ranks_here);
  void check_fit();  // in memory
  void resume();
  void start_loader();
  RunSummary summary() const;

  template <class F>
  auto during(Phase phase, F&& work) {
    return training_->timeline().during(machine_.stream, phase, std::forward<F>(work));
  }
  double leave_out(Phase phase, std::string_view reason, const std::function<void()>& work);

  bool is_done() const { return saver_->checkpoints().newest_step() >= config_.train.steps; }
  StepPlan plan_step();
  void step(std::vector<MicroBatch> batch, double targets);
  bool is_last() const { return state_.step == config_.train.steps; }
  bool validates() const {
    return config_.train.eval_every > 0 && state_.step % config_.train.eval_every == 0;
  }
  // Whether the islands must be alike after this step.
  bool settles() const { return is_last() || validates() || saver_->is_due(); }
  void look(const Pending& done);
  [[noreturn]] void end_lost();
  TrainingStep::Input send_input(const Pending& step);
  void skip();
  void finish_steps(size_t running = 0);
  void check(const Pending& done);
  void log_step(const Pending& done, const StepState& state);
  void rest();
  void validate();
  void save();
  ExitCode finish(bool stopped);

  Control& job() const { return machine_.mesh()->job(); }
  Group& data() const { return machine_.mesh()->data(); }

  World& world_;
  Config config_;
  Machine machine_;
  StepRanges skip_batches_;
  RunDirectory directory_;
  StopRequests stop_;

  AvailableMemory available_;  // before anything is allocated
  OpenChoices open_choices_;   // of a step of this rank
  Chosen chosen_;

  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<RunQuestions> questions_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<TrainingStep> training_;
  std::unique_ptr<Uploader> upload_;
  std::unique_ptr<Islands> islands_;
  std::unique_ptr<ModelViews> views_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<MetricsWindow> window_;  // since the last logged step
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<Tracing> tracing_;
  std::unique_ptr<RunLog> log_;  // rank 0

  RunState state_;         // of the last settled step, except `step`: that one may still be running
  double last_scale_ = 1;  // loss scale of the last settled step
  std::optional<double> drift_{};  // since the last logged step
  LostRun lost_;
  std::deque<Pending> pending_;  // oldest first
};

}  // namespace tandem

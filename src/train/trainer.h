// The training loop: data -> step -> metrics -> validation -> checkpoint.
#pragma once

#include <memory>
#include <vector>

#include "comm/world.h"
#include "src/data/loader.h"
#include "src/estimate/memory_check.h"
#include "src/inference/choice_evaluation.h"
#include "src/inference/evaluation.h"
#include "src/machine/choices.h"
#include "src/machine/machine.h"
#include "src/report/run_log.h"
#include "src/settings/config.h"
#include "src/settings/step_ranges.h"
#include "src/step/training_step.h"
#include "src/stop/stop_requests.h"
#include "src/train/islands.h"
#include "src/train/model_views.h"
#include "src/train/run_choices.h"
#include "src/train/running_steps.h"
#include "src/train/saver.h"
#include "src/train/votes.h"
#include "src/weights/make_model.h"
#include "src/weights/run_directory.h"

namespace tandem {

class Trainer {
 public:
  // Collective. Opens the dataset, builds the model, and resumes from the newest checkpoint. Errors
  // that all ranks see are AgreedErrors.
  Trainer(const Config& config, World& world);

  // Trains to the last step, saves, then validates. Only says so if the checkpoint is of that step
  // or later, and validated.
  // kStopped if a signal, run.stop_file or a spot notice asked to stop; then it saves too.
  ExitCode run();

 private:
  // The next step, and what all ranks agreed on before it.
  struct StepPlan {
    std::vector<MicroBatch> batch{};
    bool skips = false;  // the step has no batch: train.skip_batches
    Decision agreed{};
  };

  void open_data(bool verifies);
  OpenChoices build(const AvailableMemory& available);
  void check_fit(const AvailableMemory& available);
  void resume(const AvailableMemory& available, const OpenChoices& choices);
  void start_loader();
  RunSummary summary(const Chosen& chosen) const;

  bool is_done() const;
  bool lacks_validation() const;
  StepPlan plan_step();
  bool is_last() const { return state_.step == config_.train.steps; }
  bool validates() const {
    return config_.train.eval_every > 0 && state_.step % config_.train.eval_every == 0;
  }
  // Whether the islands must be alike after this step.
  bool settles() const { return is_last() || validates() || saver_->is_due(); }
  void skip();
  void finish_steps(size_t running = 0);
  [[noreturn]] void end_lost();
  void rest();
  bool validate();
  void save();
  ExitCode finish(bool stopped);

  Control& job() const { return machine_.mesh()->job(); }

  World& world_;
  Config config_;
  Machine machine_;
  StepRanges skip_batches_;
  RunDirectory directory_;
  StopRequests stop_;

  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<RunQuestions> questions_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<TrainingStep> training_;
  std::unique_ptr<Uploader> upload_;
  std::unique_ptr<Islands> islands_;
  std::unique_ptr<ModelViews> views_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<RunningSteps> steps_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<RunLog> log_;  // rank 0

  RunState state_;  // as in RunningSteps
};

}  // namespace tandem

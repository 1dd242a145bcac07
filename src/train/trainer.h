// The training loop: config -> data -> model -> autograd -> reducer -> optimizer -> checkpoint. The
// only file that knows more than one neighbour.
#pragma once

#include <chrono>
#include <limits>
#include <memory>
#include <optional>

#include "comm/param_store.h"
#include "comm/world.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "src/autograd/tape.h"
#include "src/data/loader.h"
#include "src/io/checkpoint.h"
#include "src/train/config.h"
#include "src/train/evaluation.h"
#include "src/train/run_directory.h"
#include "src/train/run_log.h"
#include "src/train/stop_signal.h"

namespace tandem {

class Trainer {
 public:
  // Collective. Opens the dataset, builds the model, and resumes where the run's newest checkpoint
  // stands. Errors that all ranks see are AgreedErrors.
  Trainer(const Config& config, World& world, Memory& memory);

  // Trains to the last step. kOk, or kStopped when a signal asked to stop; both with a checkpoint
  // saved.
  ExitCode run();

 private:
  // What all ranks agree on before a step: one control message.
  struct StepPlan {
    double targets = 0;  // in the global batch
    bool stop = false;   // some rank was asked to
    bool save = false;   // checkpoint.every_minutes have passed
  };

  void open_data();
  void build();
  void resume();
  void start_loader();
  std::string checkpoint_to_resume() const;
  RunSummary summary() const;
  Manifest manifest() const;

  std::vector<MicroBatch> next_batch();
  StepPlan plan_step(const std::vector<MicroBatch>& batch);
  void step(const std::vector<MicroBatch>& batch, const StepPlan& plan);
  double run_micro_batch(const MicroBatch& batch, double seed, bool last);
  void update_statistics(bool keep);
  void update_parameters(double grad_norm);
  void log_step();
  void validate();
  void save();
  ExitCode finish(bool stopped);

  double lr() const { return lr_at(schedule_, step_); }
  int64_t micro_batch() const { return config_.train.micro_batch_of(comm_.size()); }
  int64_t accumulation() const {
    return config_.train.global_batch / (micro_batch() * comm_.size());
  }

  Config config_;
  World& world_;
  Communicator& comm_;
  RunDirectory directory_;
  Memory& memory_;
  Stream stream_;

  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Tape> tape_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<RunLog> log_;  // rank 0
  ScheduleOptions schedule_;
  StopSignal stop_signal_;

  int64_t step_ = 0;            // updates done
  int64_t skipped_ = 0;         // updates left out because a gradient was not finite
  StepMetrics window_;          // since the last logged step
  std::vector<double> losses_;  // of this rank's micro-batches in this step
  double batch_targets_ = 0;
  double best_val_loss_ = std::numeric_limits<double>::infinity();
  std::optional<double> val_loss_;  // at step_
  double gemm_rate_ = 0;            // FLOP/s
  int64_t last_saved_ = -1;
  std::string last_checkpoint_;
  std::chrono::steady_clock::time_point window_start_, last_save_time_;
};

}  // namespace tandem

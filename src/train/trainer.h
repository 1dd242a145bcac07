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
#include "optim/step_record.h"
#include "src/autograd/tape.h"
#include "src/data/loader.h"
#include "src/io/checkpoint.h"
#include "src/train/config.h"
#include "src/train/evaluation.h"
#include "src/train/machine.h"
#include "src/train/model_zoo.h"
#include "src/train/run_directory.h"
#include "src/train/run_log.h"
#include "src/train/stop_signal.h"

namespace tandem {

class Trainer {
 public:
  // Collective. Opens the dataset, builds the model, and resumes where the run's newest checkpoint
  // stands. Errors that all ranks see are AgreedErrors.
  Trainer(const Config& config, World& world);

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

  // A step that is enqueued on the device; its figures are read one step late.
  struct Pending {
    int64_t step = 0;  // updates done behind it
    double lr = 0, targets = 0;
    int64_t wire_bytes = 0;
    Exposure exposure{};
    StepRecord::Copy record{};
  };

  void open_data();
  void build();
  void resume();
  void restore_state(const Manifest& manifest);
  void start_loader();
  std::string checkpoint_to_resume() const;
  RunSummary summary() const;
  Manifest manifest() const;

  std::vector<MicroBatch> next_batch();
  StepPlan plan_step(const std::vector<MicroBatch>& batch);
  void step(const std::vector<MicroBatch>& batch, const StepPlan& plan);
  Exposure run_micro_batch(const MicroBatch& batch, double seed, int64_t micro_step);
  void sum_statistics();
  void update();
  void settle();
  void log_step(const Pending& done);
  void validate();
  void save();
  ExitCode finish(bool stopped);

  int64_t micro_batch() const { return config_.train.micro_batch_of(comm_.size()); }
  int64_t accumulation() const {
    return config_.train.global_batch / (micro_batch() * comm_.size());
  }

  Config config_;
  Machine machine_;
  Communicator& comm_;
  RunDirectory directory_;
  Memory& memory_;
  Stream& stream_;

  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<Model> model_;
  StatisticsMemory statistics_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<StepRecord> record_;
  std::unique_ptr<Uploader> upload_;
  std::unique_ptr<Tape> tape_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<RunLog> log_;  // rank 0
  ScheduleOptions schedule_;
  StopSignal stop_signal_;

  int64_t step_ = 0;  // updates done
  StepOptions step_options_;
  StepState state_;  // behind the last settled step
  std::optional<Pending> pending_;
  StepMetrics window_;  // since the last logged step
  double best_val_loss_ = std::numeric_limits<double>::infinity();
  std::optional<double> val_loss_;  // at step_
  double peak_flops_ = 0;           // of one rank
  int64_t last_saved_ = -1;
  std::string last_checkpoint_;
  std::chrono::steady_clock::time_point window_start_, last_save_time_;
};

}  // namespace tandem

// What people and other programs see of a run: the table at the start, progress, metrics.jsonl,
// TensorBoard, report.json, and the lines at the end. Only rank 0 has a RunLog.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "src/data/dataset.h"
#include "src/inference/evaluation.h"
#include "src/report/console.h"
#include "src/report/gpu_metrics.h"
#include "src/report/run_cost.h"
#include "src/report/run_report.h"
#include "src/report/slowest_rank.h"
#include "src/report/writers/metrics_log.h"
#include "src/report/writers/tensorboard.h"
#include "src/settings/config.h"
#include "src/weights/make_model.h"
#include "src/weights/run_directory.h"
#include "src/weights/run_state.h"

namespace tandem {

// Figures of the steps since the last logged one.
struct StepMetrics {
  int64_t step = 0;   // the last of them
  int64_t steps = 0;  // how many
  int64_t samples = 0;
  double seconds = 0;
  double loss = 0;  // mean over the global batch of the last step, nats per target
  double lr = 0;
  double grad_norm = 0;                                   // before clipping
  double mfu = std::numeric_limits<double>::quiet_NaN();  // model FLOP/s over the peak of all
                                                          // ranks; NaN: peak not known
  double loss_scale = 1;
  int64_t skipped = 0;            // updates skipped so far because a gradient was not finite
  std::optional<double> drift{};  // of islands (src/step/island_sync.h), if they have met
  double exposed_comm_s = 0;      // communication not hidden by computation, largest of all ranks
  double exposed_copy_s = 0;      // waiting for copies between host and device, likewise
  int64_t host_bytes = 0;         // RankUse::host_bytes of all ranks of the node that has most
  SlowestRank slowest{};
  std::vector<double> own_s{};  // by rank: RankTime::own
  // Bytes sent in the last step, of the rank that sent the most payload; peaks of memory, of the
  // largest rank.
  RankUse use{};
  GpuUses gpus{};  // of all ranks, or those of an island
};

// Of one checkpoint.
struct SaveMetrics {
  double stall_s = 0;             // training waited
  std::vector<double> write_s{};  // each rank wrote
  int64_t steps = 0;              // were done meanwhile
};

// The figures of the table at the start.
struct RunSummary {
  ParameterCount parameters{};
  double flops_per_sample = 0;
  double peak_flops = 0;  // FLOP/s of one rank that count as an mfu of 1; 0: not known
  BatchPlan batch{};
  std::string machine;  // device and backend of a rank
  std::string sharing;  // nodes, ZeRO stage, kind of sums
  int64_t buckets = 0, gradient_bytes = 0;
  int64_t samples_per_epoch = 0;
  std::optional<PackingCosts> packing{};
  int64_t skipped_batches = 0;  // steps without a batch, before this start
  std::string graph;            // whether a step is one, and why not; empty for a CPU
  std::string memory;           // by class, of one rank
  int64_t measured_choices = 0;
  double measuring_s = 0;
};

// For a run whose newest checkpoint is of the last step, or a later one. Writes no file.
void say_nothing_to_do(const Config& config, const RunDirectory& directory,
                       const std::string& checkpoint);

class RunLog {
 public:
  // Opens metrics.jsonl and the event file. Lines of what `state` does not know, of later steps and
  // validations, move aside, and the figures of an end at a later step are dropped from
  // report.json. `hosts`: by rank. Error kData when the files cannot be written.
  RunLog(const Config& config, const RunDirectory& directory, const RunState& state,
         const DatasetInfo& data, const std::vector<std::string>& hosts);

  // `changes`: settings that differ from those of the checkpoint, if the run is resumed.
  void start(const RunSummary& summary, const std::string& resumed_from,
             const std::vector<std::string>& changes, const std::string& weights_from);
  // Call it after every step, after training() if that is due; cheap. `loss`: as in StepMetrics.
  void step(int64_t step, double loss);
  // Training stands still for this reason ("validating"), until go_on().
  void pause(std::string_view reason) { console_.pause(reason); }
  void go_on() { console_.go_on(); }
  void training(const StepMetrics& metrics);
  // Dollars of the run until now, if they are known.
  std::optional<double> usd() const {
    return cost_.is_known() ? std::optional(cost_.usd()) : std::nullopt;
  }
  void skipped(int64_t step);  // in place of step() and training(), for a step without a batch
  void validation(int64_t step, const Evaluation& result);
  // For TensorBoard, where it is on.
  void show_text(int64_t step, const std::string& sample);
  void show_images(int64_t step, const PredictedImages& predicted);
  void show_histograms(int64_t step, const Histograms& histograms);
  // The checkpoint of `step` is committed.
  void saved(int64_t step, const SaveMetrics& metrics);
  // Ends this start in report.json. If a step was done, shows and writes what the ranks used. Sets
  // first_step and starts of the report. `checkpoint`: the newest, or empty.
  void finish(bool stopped, const std::string& checkpoint, RunReport report);

 private:
  RunStart& now() { return run_.starts.back(); }
  double duration_s() const;  // since this start
  // Tokens or images that the run was trained on.
  int64_t units_until(int64_t step) const {
    return (step - skipped_batches_) * config_.train.global_batch * config_.units_per_sample();
  }
  // Where training is after a step: epochs, and tokens or samples.
  std::vector<Metric> place_of(int64_t step) const;
  // A line of metrics.jsonl: the step, these, and the time.
  void append(int64_t step, std::vector<Metric> metrics);
  void write_report();
  std::vector<Metric> slowest_metrics(const StepMetrics& m) const;
  void warn_of_long_ways(double step_s, int64_t step);
  // The figures as scalars KIND/NAME.
  void add_scalars(int64_t step, const std::string& kind, const std::vector<Metric>& metrics);
  // Writes to a file. If that fails, training goes on: the first failure is said, all are counted.
  void log(const std::function<void()>& writing);
  // The same for the event file. Does nothing if TensorBoard is off.
  void to_tensorboard(const std::function<void(TensorBoardWriter&)>& writing);

  Config config_;
  RunDirectory directory_;
  DatasetInfo data_;
  RunReport run_;  // what report.json holds: the last end, and all starts with this one
  RunCost cost_;
  MetricsLog metrics_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;  // null: switched off
  Console console_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  double elapsed_before_s_ = 0;  // seconds of training before this start
  int64_t samples_per_epoch_ = 1;
  int64_t skipped_batches_ = 0;     // steps without a batch, of the whole run
  StepReport report_;               // the latest measured figures
  int64_t skipped_ = -1;            // the latest step without a batch
  int64_t lost_ = 0;                // writes that failed
  bool knows_ways_ = false;         // how long islands are apart
  std::vector<std::string> hosts_;  // by rank
  StragglerWatch stragglers_;
  GpuMetrics gpus_;
};

}  // namespace tandem

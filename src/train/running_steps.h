// The steps that are enqueued, and what becomes of them when they end: metrics, a trace, a lost
// run. The host enqueues a step while the one before may still run.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/world.h"
#include "src/machine/machine.h"
#include "src/report/metrics_window.h"
#include "src/report/run_log.h"
#include "src/settings/config.h"
#include "src/step/training_step.h"
#include "src/step/upload.h"
#include "src/train/islands.h"
#include "src/train/lost_run.h"
#include "src/train/tracing.h"
#include "src/weights/run_directory.h"
#include "src/weights/run_state.h"

namespace tandem {

class RunningSteps {
 public:
  // `state`: the run's. It is that of the last step that has ended, except `step`, which counts
  // those that are enqueued. The references must outlive this.
  RunningSteps(const Config& config, World& world, Machine& machine, const Model& model,
               TrainingStep& training, Uploader& upload, Islands& islands,
               const RunDirectory& directory, RunState& state);

  void log_to(RunLog& log) { log_ = &log; }                   // rank 0
  double peak_flops() const { return window_.peak_flops(); }  // as in MetricsWindow

  // The time of steps begins now.
  void begin();
  // Collective. Enqueues a whole step. `targets`: in the batch of this rank's data group.
  // `settles`: whether the islands must be alike after the step; it is asked once that is counted.
  void enqueue(std::vector<MicroBatch> batch, double targets, const std::function<bool()>& settles);
  // Waits for all steps but the newest `running` ones, and checks their results. After one that
  // was lost they tell nothing more: the run must end.
  void finish(size_t running = 0);
  const LostRun& lost() const { return lost_; }
  double loss_scale() const { return loss_scale_; }  // of the last step that has ended

  // A wait of the host that is part of a step, in the timeline.
  template <class F>
  auto during_wait(Phase phase, F&& wait) {
    return training_.timeline().during(machine_.stream, phase, std::forward<F>(wait), true);
  }
  // Runs work(), whose time belongs to no step, and returns its seconds. `reason`: for the
  // progress bar; empty: too short to be shown.
  double leave_out(Phase phase, std::string_view reason, const std::function<void()>& work);

  // As in Tracing. The last two are collective, when all steps have ended.
  bool trace_is_due() const { return tracing_.is_due(state_.step + 1); }
  void turn_trace();
  void finish_trace();
  // Collective. As in MetricsWindow.
  std::vector<RankUse> use(int64_t saved_copy_bytes) { return window_.use(saved_copy_bytes); }

 private:
  struct Enqueued {
    int64_t step = 0;  // updates done after it
    double lr = 0, targets = 0;
    std::vector<MicroBatch> batch{};  // in case the step must be run again
    Timeline timeline{};              // of this step
    StepRecord::Copy record{};
    std::optional<IslandSync::Drift> drift{};
    MetricsWindow::Mark end{};
  };

  TrainingStep::Input send_input(const Enqueued& step);
  void look(const Enqueued& done);
  void check(const Enqueued& done);
  void log_step(const Enqueued& done, const StepState& state);

  const Config& config_;
  World& world_;
  Machine& machine_;
  TrainingStep& training_;
  Uploader& upload_;
  Islands& islands_;
  RunState& state_;
  MetricsWindow window_;  // since the last logged step
  Tracing tracing_;
  RunLog* log_ = nullptr;

  LostRun lost_;
  double loss_scale_ = 1;
  std::optional<double> drift_{};  // since the last logged step
  std::deque<Enqueued> steps_;     // oldest first
};

}  // namespace tandem

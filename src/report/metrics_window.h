// Measures the steps since the last logged one: their time and its parts, the bytes that they sent,
// and the memory of all ranks.
//
// A step is enqueued while the previous one may still run. So the end of each step is a mark, which
// is read after the host has waited for the step. On a GPU the time of a step is that of its parts.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "layers/models/model.h"
#include "src/machine/machine.h"
#include "src/report/run_exports.h"
#include "src/report/run_log.h"
#include "src/telemetry/gpu_watch.h"
#include "src/trace/timeline.h"

namespace tandem {

class MetricsWindow {
 public:
  using Clock = std::chrono::steady_clock;

  // Takes the machine's peak FLOP/s, which on a CPU is measured here. `exchanged`: bytes between
  // islands, null if there is one. Watches the rank's GPU, as log.gpu_every_s says. The references
  // must outlive this object.
  MetricsWindow(Machine& machine, const Model& model, DType dtype, const Config& config,
                const WireCount* exchanged);

  double peak_flops() const { return peak_flops_; }  // of one rank; 0: not known

  // The end of what is enqueued so far: the time, and the bytes sent when communication gets there.
  struct Mark {
    std::shared_ptr<WireCount> sent{};
    WireCount exchanged{};
    Event there{};
    Clock::time_point enqueued{};
    Clock::duration left_out{};  // up to then, in all
  };
  Mark mark();

  // The first window begins now.
  void begin();
  // Leave out what belongs to no step: messages from `start` up to now, when all steps before are
  // added, and time that something else took.
  void leave_out_messages(const Mark& start) { wire_ += wire_at(mark()) - wire_at(start); }
  void leave_out_time(Clock::duration time) { left_out_ += time; }

  // Counts a step that has ended. Call it in the order of steps.
  void add(const Mark& end, const PhaseSeconds& parts);
  // Collective among all ranks, or among those of an island. Writes what was measured up to the
  // last added step into its fields of `metrics`, and begins the next window.
  void close(const Mark& end, bool by_all, StepMetrics& metrics);
  // Tells monitors outside of the run of the window that was closed last. `usd`: as in RunExports.
  void tell(const StepMetrics& metrics, std::optional<double> usd) {
    exports_.write(metrics, first_rank_, usd);
  }

  // Collective. What every rank used since the start of the program. `saved_copy_bytes`: see
  // RankUse.
  std::vector<RankUse> use(int64_t saved_copy_bytes) {
    return gather_use(mesh_.job(), wire_at(mark()), saved_copy_bytes);
  }

 private:
  WireCount wire_at(const Mark& mark);
  std::vector<RankUse> gather_use(Control& among, const WireCount& wire,
                                  int64_t saved_copy_bytes = 0);

  Machine& machine_;
  Mesh& mesh_;
  const Model& model_;
  int64_t global_batch_;
  const WireCount* exchanged_;
  double peak_flops_;
  std::unique_ptr<GpuWatch> gpu_;  // null: none is watched
  RunExports exports_;
  int first_rank_ = 0;  // of those that the last closed window was of

  Clock::time_point start_{};
  Clock::duration left_out_{};         // since this object was made
  Clock::duration left_out_before_{};  // up to start_
  WireCount wire_{};                   // sent up to the end of the last step
  WireCount sent_{};                   // in the last step
  int64_t steps_ = 0;
  PhaseSeconds parts_{};  // of this rank
};

}  // namespace tandem

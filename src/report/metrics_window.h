// Measures the steps since the last logged one: their time, what they sent and waited for, and the
// memory of all ranks.
//
// A step is enqueued while the one before it may still run, so each ends at a mark, which is read
// when the host has waited for the step.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "layers/module.h"
#include "src/report/run_log.h"
#include "src/train/machine.h"

namespace tandem {

class MetricsWindow {
 public:
  using Clock = std::chrono::steady_clock;

  // Both references must outlive this. Measures a CPU's peak.
  MetricsWindow(Machine& machine, const Model& model, DType dtype, int64_t global_batch);

  double peak_flops() const { return peak_flops_; }  // of one rank; 0: not known

  // What was enqueued up to now: the time, and what is sent when the communication gets there.
  struct Mark {
    std::shared_ptr<WireCount> sent{};
    Event there{};
    Clock::time_point enqueued{};
  };
  Mark mark();

  // The first window begins now.
  void begin();
  // What belongs to no step: the messages up to now, and time that something else took.
  void leave_out_messages() { wire_ = wire_at(mark()); }
  void leave_out_time(Clock::duration time) { start_ += time; }

  // A step has ended, in the order of steps.
  void add(const Mark& end, double exposed_comm_s);
  // Collective. What was measured up to the last step added, into its fields of `metrics`; what
  // follows is the next window.
  void close(const Mark& end, StepMetrics& metrics);

  // Collective. What every rank used since the start of the program.
  std::vector<RankUse> use() { return gather_use(wire_at(mark())); }

 private:
  WireCount wire_at(const Mark& mark);
  std::vector<RankUse> gather_use(const WireCount& wire);

  Machine& machine_;
  Mesh& mesh_;
  const Model& model_;
  int64_t global_batch_;
  double peak_flops_;

  Clock::time_point start_{};
  WireCount wire_{};  // sent up to the end of the last step
  WireCount sent_{};  // in the last step
  int64_t steps_ = 0;
  double exposed_comm_s_ = 0;  // of this rank
};

}  // namespace tandem

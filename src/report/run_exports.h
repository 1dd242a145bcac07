// What a rank tells monitors outside of the run at each logged step (writers/exports.h).
//
// Each rank has a file for Prometheus, FOLDER/tandem_RUN_RANK.prom, with labels run, rank, host
// and, where a GPU is watched, gpu. Rank 0's also has the figures of the run. Lines for CloudWatch
// come from rank 0, with the dimension Run, and from the first rank of each host whose GPUs are
// watched, with Run and Host:
//   Run        StepTime (Milliseconds), Loss, UnitsPerSecond (Count/Second), Usd
//   Run, Host  GpuUse (Percent, the mean of its GPUs), GpuLeastUse (Percent, of one GPU), GpuPower
//              (W, the sum), GpuTemperature (degrees Celsius, the greatest), GpuThrottled (how many
//              GPUs were)
// A GPU's error is a line of its own at once, since it may end the run: xid_export().
// A GPU that nobody looked at since the line before keeps its latest figures. One that has not
// answered for 10 times log.gpu_every_s, and for 1 s at least, has only what counters counted.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/report/run_log.h"
#include "src/report/writers/exports.h"

namespace tandem {

class RunExports {
 public:
  // `hosts`: by rank. `gpu`: the address of this rank's; empty: none is watched. The first rank of
  // a host removes what killed starts of the run have left in log.prometheus.
  RunExports(const Config& config, int rank, std::vector<std::string> hosts,
             const std::string& gpu);

  // The ranks that `metrics` are of begin with `first_rank`. `usd`: what the run has cost, if
  // known.
  void write(const StepMetrics& metrics, int first_rank, std::optional<double> usd);

 private:
  std::vector<Gauge> run_gauges(const StepMetrics& metrics, std::optional<double> usd) const;
  std::string run_line(const StepMetrics& metrics, std::optional<double> usd) const;
  std::string host_line();
  void keep(const StepMetrics& metrics, int first_rank);
  double units_per_s(const StepMetrics& metrics) const;
  bool is_first_of_host() const;

  std::string run_, unit_;
  int64_t units_per_sample_;
  int rank_;
  std::vector<std::string> hosts_;
  Labels labels_;
  Exports exports_;
  GpuUses latest_;                // by rank; energy and NVLink's bytes since this start
  std::vector<double> silent_s_;  // for how long, by rank
  double longest_silence_s_;
};

// Adds a line with the dimensions Run and Host and Xid = 1 (Count) to log.emf. May be called by any
// thread. Null without log.emf.
std::function<void()> xid_export(const Config& config, const std::string& host);

}  // namespace tandem

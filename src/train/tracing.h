// log.trace: records some steps of a run, and writes what every rank did in them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/machine/machine.h"
#include "src/settings/step_ranges.h"
#include "src/trace/trace.h"
#include "src/weights/run_directory.h"

namespace tandem {

// The ranks that the trace of a job shows: all; of more than 64 the slowest, the median, the
// fastest and those of the host of rank 0. `seconds`: what each rank was busy for.
std::set<int> shown_ranks(const std::vector<double>& seconds,
                          const std::vector<std::string>& hosts);

class Tracing {
 public:
  // `steps`: log.trace. `timeline`: of the compute stream. The references must outlive this.
  Tracing(const std::string& steps, Machine& machine, Timeline& timeline,
          const RunDirectory& directory, std::string host);

  ~Tracing();
  Tracing(const Tracing&) = delete;

  bool is_on() const { return first_.has_value(); }
  // Whether turn() is to be called before step `next`.
  bool is_due(int64_t next) const { return is_on() != steps_.contains(next); }
  // Collective, when all steps are settled. Begins to record; or ends it and writes the files, of
  // this rank in runs/NAME/trace, of the job in runs/NAME/trace.json.gz. Says it in a line if they
  // cannot be written.
  void turn();
  // A step that has settled.
  void add(int64_t step, const Timeline& timeline);
  // Collective, when the last step is settled; `next` would follow. Ends a recording; says it in a
  // line if some steps of log.trace have not run, or none.
  void finish(int64_t next);

 private:
  void capture(bool on);  // for a profiler
  void begin();
  void end();
  void write(const Trace& trace) const;

  StepRanges steps_;
  Machine& machine_;
  Timeline& timeline_;
  const RunDirectory& directory_;
  std::string host_;
  std::optional<ClockReading> first_{};  // while it records
  bool is_done_ = false;
};

}  // namespace tandem

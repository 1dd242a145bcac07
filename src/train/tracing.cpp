#include "src/train/tracing.h"

#include <algorithm>

#include "src/core/visible_text.h"
#include "src/device/profiler_range.h"
#include "src/device/ranks/agreement.h"
#include "src/io/file.h"
#include "src/report/console.h"
#include "src/report/trace/chrome_trace.h"
#include "src/trace/recorder.h"

namespace tandem {

namespace {

constexpr int kMostRanks = 64;  // that a person looks at together

// What each rank of the job was busy for.
std::vector<double> busy_seconds(Control& job, const Trace& trace) {
  std::vector<double> seconds(static_cast<size_t>(job.size()), 0.0);
  for (const Trace::Step& step : trace.steps) {
    for (const Phase phase : {Phase::kCompute, Phase::kData, Phase::kOptimizer}) {
      seconds[job.rank()] += step.parts[static_cast<size_t>(phase)];
    }
  }
  return job.sum(seconds);
}

}  // namespace

std::set<int> shown_ranks(const std::vector<double>& seconds,
                          const std::vector<std::string>& hosts) {
  const auto ranks = static_cast<int>(seconds.size());
  std::vector<int> by_time;
  std::set<int> shown;
  for (int rank = 0; rank < ranks; ++rank) {
    by_time.push_back(rank);
    if (ranks <= kMostRanks || hosts[rank] == hosts[0]) {
      shown.insert(rank);
    }
  }
  std::ranges::stable_sort(by_time, {}, [&](int rank) { return seconds[rank]; });
  shown.insert({by_time.front(), by_time[ranks / 2], by_time.back()});
  return shown;
}

Tracing::Tracing(const std::string& steps, Machine& machine, Timeline& timeline,
                 const RunDirectory& directory, std::string host)
    : steps_(StepRanges::parse(steps).value()),
      machine_(machine),
      timeline_(timeline),
      directory_(directory),
      host_(std::move(host)) {}

// A run that fails in a traced step leaves no trace.
Tracing::~Tracing() {
  if (is_on()) {
    recorder().abandon();
  }
}

void Tracing::capture(bool on) {
  if (machine_.device() == Device::kCuda) {
    ProfilerRange::capture(on);
  }
}

void Tracing::turn() { is_on() ? end() : begin(); }

void Tracing::add(int64_t step, const Timeline& timeline) {
  if (is_on()) {
    recorder().add_step(step, timeline);
  }
}

void Tracing::finish(int64_t next) {
  std::string lacks =
      steps_.contains(next) ? "the last steps of log.trace, which the run did not reach" : "";
  if (is_on()) {
    end();
  } else if (!is_done_ && !steps_.all().empty()) {
    lacks = "no step of log.trace has run";
  }
  if (!lacks.empty() && machine_.mesh()->job().rank() == 0) {
    complain("not traced: " + lacks);
  }
}

void Tracing::begin() {
  first_ = machine_.mesh()->job().read_clock();
  capture(true);
  recorder().begin(machine_.stream, timeline_, machine_.memory);
}

void Tracing::end() {
  Control& job = machine_.mesh()->job();
  is_done_ = true;
  Trace trace = recorder().end();
  capture(false);
  trace.rank = job.rank();
  trace.ranks = job.size();
  trace.host = host_;
  const auto join = [](ClockReading& bound_only, const ClockReading& reading) {
    bound_only = {reading.at, reading.offset, reading.bound + bound_only.bound};
  };
  join(trace.first, *std::exchange(first_, std::nullopt));
  join(trace.last, job.read_clock());
  try {
    write(trace);
  } catch (const AgreedError& error) {
    if (job.rank() == 0) {
      complain(str("not traced: ", error.what(), "; training goes on"));
    }
  }
}

void Tracing::write(const Trace& trace) const {
  Control& job = machine_.mesh()->job();
  agree(job, [&] {
    make_directories(directory_.trace());
    write_trace(trace_path(directory_.trace(), trace.rank), rank_trace_text(trace));
  });
  const std::set<int> shown = shown_ranks(busy_seconds(job, trace), job.all_gather(trace.host));
  on_root(job, [&] {
    std::vector<Trace> traces;
    for (const int rank : shown) {
      traces.push_back(read_trace(trace_path(directory_.trace(), rank)));
    }
    write_trace(directory_.job_trace(), job_trace_text(traces));
    return std::string();
  });
}

}  // namespace tandem

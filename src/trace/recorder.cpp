#include "src/trace/recorder.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace tandem {

namespace {

int64_t nanoseconds(Timeline::Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace

int64_t trace_now() { return nanoseconds(Timeline::Clock::now()); }

// An event of the idle stream, at the middle of the shortest of several tries.
Recorder::Anchor Recorder::anchor() const {
  constexpr int kTries = 16;
  compute_->synchronize();
  Anchor best;
  for (int64_t shortest = INT64_MAX, i = 0; i < kTries; ++i) {
    const int64_t before = trace_now();
    Event event = compute_->record_time();
    event.synchronize();
    const int64_t time = trace_now() - before;
    if (time < shortest) {
      shortest = time;
      best = {std::move(event), before + time / 2, (time + 1) / 2};
    }
  }
  return best;
}

// The distance of two events is a float of milliseconds, exact enough from one step to the next.
int64_t Recorder::time_of(const Event& event) const {
  return last_.at + std::llround(event.seconds_since(last_.event) * 1e9);
}

void Recorder::begin(Stream& compute, Timeline& timeline, const Memory& memory) {
  compute_ = &compute;
  timeline_ = &timeline;
  memory_ = &memory;
  thread_ = std::this_thread::get_id();
  trace_ = {};
  if (compute.device() == Device::kCuda) {
    first_ = last_ = anchor();
  }
  is_on_ = true;
}

// Both ends of the recording are known by the GPU's and by the host's clock.
Trace Recorder::end() {
  is_on_ = false;
  timeline_->enter_range(*compute_, "");
  const std::lock_guard lock(mutex_);
  if (compute_->device() == Device::kCuda) {
    const Anchor real = anchor();
    const int64_t measured = time_of(real.event);
    trace_.first.bound = first_.bound;
    trace_.last.bound = real.bound;
    const double rate = static_cast<double>(real.at - first_.at) /
                        static_cast<double>(std::max<int64_t>(measured - first_.at, 1));
    const auto correct = [&](TraceSpan& span) {
      for (int64_t* time : {&span.begin, &span.end}) {
        *time = first_.at + std::llround(static_cast<double>(*time - first_.at) * rate);
      }
    };
    for (Trace::Step& step : trace_.steps) {
      correct(step.span);
    }
    for (Trace::Piece& piece : trace_.pieces) {
      correct(piece.span);
    }
    for (Trace::Collective& collective : trace_.collectives) {
      if (collective.on_gpu) {
        correct(collective.span);
      }
    }
  }
  return std::exchange(trace_, {});
}

void Recorder::add_step(int64_t number, const Timeline& timeline) {
  const std::lock_guard lock(mutex_);
  const std::vector<Timeline::Mark>& marks = timeline.marks();
  const std::vector<double> times = timeline.times();
  const Timeline::Mark& first = marks.front();
  const int64_t start = first.on_host ? nanoseconds(first.host) : time_of(first.event);
  int64_t begin = start;
  Trace::Step step{.number = number, .span = {begin, begin}, .parts = timeline.seconds()};
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    step.span.end = start + std::llround(times[i + 1] * 1e9);
    if (step.span.end > begin) {
      trace_.pieces.push_back({{begin, step.span.end}, marks[i].phase, marks[i].range});
    }
    begin = step.span.end;
  }
  last_ = {marks.back().event, begin, 0};
  trace_.steps.push_back(step);
}

void Recorder::enter_range(const std::string& innermost) {
  struct Open {
    std::string name;
    int64_t since = 0;
  };
  thread_local Open open;
  if (!is_on_) {
    open.name.clear();
    return;
  }
  const int64_t now = trace_now();
  const bool is_main = std::this_thread::get_id() == thread_;
  if (is_main) {
    timeline_->enter_range(*compute_, innermost);
  }
  const std::lock_guard lock(mutex_);
  if (is_main) {
    trace_.memory.push_back({now, memory_->total().bytes});
  }
  // On the CPU the thread is the compute stream.
  if (!open.name.empty() && !(is_main && compute_->device() == Device::kCpu)) {
    trace_.host_work.push_back({{open.since, now}, is_main ? "host" : open.name, open.name});
  }
  open = {innermost, now};
}

void Recorder::add(const FlightCollective& collective, TraceSpan span, bool on_gpu) {
  const std::lock_guard lock(mutex_);
  trace_.collectives.push_back({.span = span,
                                .group = collective.group,
                                .number = collective.number,
                                .bytes = collective.bytes,
                                .kind = collective.kind,
                                .purpose = collective.purpose,
                                .ranks = collective.ranks,
                                .on_gpu = on_gpu});
}

// Never destroyed: threads may enter ranges until the end.
Recorder& recorder() {
  static auto& recorder = *new Recorder;
  return recorder;
}

}  // namespace tandem

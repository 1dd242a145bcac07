#include "src/trace/timeline.h"

#include <algorithm>
#include <utility>

#include "src/core/error.h"
#include "src/trace/flight_log.h"
#include "src/trace/stamp.h"

namespace tandem {

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames = {
      "compute", "communication", "data", "optimizer", "saving", kPartElsewhere, "copy"};
  return kNames[static_cast<size_t>(phase)];
}

Phase Timeline::enter(Stream& compute, Phase phase, bool on_host) {
  flight_log().enter(name_of(phase));
  return mark(compute, phase, on_host);
}

void Timeline::enter_range(Stream& compute, const std::string& range) {
  range_ = range;
  mark(compute, phase_);
}

Phase Timeline::mark(Stream& compute, Phase phase, bool on_host) {
  if (stamps_) {
    const int64_t number = std::ssize(marks_);
    require(number < stamps_.elements(), "Timeline: the graph has more marks than stamps");
    int64_t* const to = stamps_.data<int64_t>() + number;
    on_device(compute, {}, [&](auto device) { stamp(device, to); });
    marks_.push_back({.phase = phase, .range = range_, .stamp = number});
    return std::exchange(phase_, phase);
  }
  on_host = on_host || compute.device() == Device::kCpu;
  marks_.push_back({.phase = phase,
                    .range = range_,
                    .on_host = on_host,
                    .event = on_host ? Event() : compute.record_time(),
                    .host = Clock::now()});
  return std::exchange(phase_, phase);
}

void Timeline::wait(Stream& compute, const Event& event, Phase phase) {
  during(compute, phase, [&] { compute.wait(event); });
}

void Timeline::wait(Stream& compute, std::optional<Event>& event, Phase phase) {
  if (event) {
    wait(compute, *std::exchange(event, std::nullopt), phase);
  }
}

Timeline Timeline::take(Stream& compute) {
  enter(compute, phase_);
  Timeline rest;
  rest.phase_ = phase_;
  rest.range_ = range_;
  rest.marks_ = {marks_.back()};
  return std::exchange(*this, std::move(rest));
}

void Timeline::append(const Timeline& graph, const Tensor& stamps) {
  for (Mark mark : graph.marks_) {
    mark.stamps = stamps;
    marks_.push_back(std::move(mark));
  }
}

double Timeline::Mark::seconds_since(const Mark& earlier) const {
  if (earlier.stamp >= 0) {
    const auto clock = earlier.stamps.as<int64_t>();
    return stamp < 0 ? 0 : 1e-9 * static_cast<double>(clock[stamp] - clock[earlier.stamp]);
  }
  return on_host || earlier.on_host ? std::chrono::duration<double>(host - earlier.host).count()
                                    : event.seconds_since(earlier.event);
}

// Events, stamps and the host have clocks of their own. What lies between two events is as late as
// it can be: the host has waited, or a graph has ended, just before the later one.
std::vector<double> Timeline::times() const {
  std::vector<double> times(marks_.size());
  for (size_t i = 0, next = 1; next < marks_.size(); i = next++) {
    while (next + 1 < marks_.size() && (marks_[next].on_host || marks_[next].stamp >= 0)) {
      ++next;
    }
    times[next] = times[i] + marks_[next].seconds_since(marks_[i]);
    for (size_t j = next - 1; j > i; --j) {
      times[j] = std::max(times[i], times[j + 1] - marks_[j + 1].seconds_since(marks_[j]));
    }
  }
  return times;
}

PhaseSeconds Timeline::seconds() const {
  const std::vector<double> times = this->times();
  PhaseSeconds seconds{};
  for (size_t i = 0; i + 1 < times.size(); ++i) {
    seconds[static_cast<size_t>(marks_[i].phase)] += times[i + 1] - times[i];
  }
  return seconds;
}

}  // namespace tandem

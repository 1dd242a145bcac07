#include "src/trace/timeline.h"

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

Phase Timeline::enter(Stream& compute, Phase phase) {
  flight_log().enter(name_of(phase));
  return mark(compute, phase);
}

void Timeline::enter_range(Stream& compute, const std::string& range) {
  range_ = range;
  mark(compute, phase_);
}

Phase Timeline::mark(Stream& compute, Phase phase) {
  if (stamps_) {
    const int64_t number = std::ssize(marks_);
    require(number < stamps_.elements(), "Timeline: the graph has more marks than stamps");
    int64_t* const to = stamps_.data<int64_t>() + number;
    on_device(compute, {}, [&](auto device) { stamp(device, to); });
    marks_.push_back({.phase = phase, .range = range_, .stamp = number});
    return std::exchange(phase_, phase);
  }
  const bool on_gpu = compute.device() == Device::kCuda;
  marks_.push_back({.phase = phase,
                    .range = range_,
                    .event = on_gpu ? compute.record_time() : Event(),
                    .host = on_gpu ? Clock::time_point() : Clock::now()});
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
  if (stamp >= 0) {
    const auto clock = stamps.as<int64_t>();
    return 1e-9 * static_cast<double>(clock[stamp] - clock[earlier.stamp]);
  }
  return host == Clock::time_point() ? event.seconds_since(earlier.event)
                                     : std::chrono::duration<double>(host - earlier.host).count();
}

// Stamps and events are two clocks. The time around a graph that its stamps do not cover belongs to
// the mark before it.
PhaseSeconds Timeline::seconds() const {
  PhaseSeconds seconds{};
  const auto add = [&](const Mark& mark, double time) {
    seconds[static_cast<size_t>(mark.phase)] += time;
  };
  for (size_t i = 0, next = 1; next < marks_.size(); i = next++) {
    double inside = 0;
    for (; marks_[next].stamp >= 0; ++next) {
      if (marks_[next - 1].stamp >= 0) {
        const double time = marks_[next].seconds_since(marks_[next - 1]);
        add(marks_[next - 1], time);
        inside += time;
      }
    }
    add(marks_[i], marks_[next].seconds_since(marks_[i]) - inside);
  }
  return seconds;
}

}  // namespace tandem

#include "src/trace/timeline.h"

#include <utility>

#include "src/trace/flight_log.h"

namespace tandem {

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames = {
      "compute", "communication", "data", "optimizer", "saving", "elsewhere"};
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
  const bool on_gpu = compute.device() == Device::kCuda;
  marks_.push_back({.phase = phase,
                    .range = range_,
                    .event = on_gpu ? compute.record_time() : Event(),
                    .host = on_gpu ? Clock::time_point() : Clock::now()});
  return std::exchange(phase_, phase);
}

void Timeline::wait(Stream& compute, const Event& communication) {
  during(compute, Phase::kCommunication, [&] { compute.wait(communication); });
}

void Timeline::wait(Stream& compute, std::optional<Event>& communication) {
  if (communication) {
    wait(compute, *std::exchange(communication, std::nullopt));
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

double Timeline::Mark::seconds_since(const Mark& earlier) const {
  return host == Clock::time_point() ? event.seconds_since(earlier.event)
                                     : std::chrono::duration<double>(host - earlier.host).count();
}

PhaseSeconds Timeline::seconds() const {
  PhaseSeconds seconds{};
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    seconds[static_cast<size_t>(marks_[i].phase)] += marks_[i + 1].seconds_since(marks_[i]);
  }
  return seconds;
}

}  // namespace tandem

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
  if (compute.device() == Device::kCuda) {
    on_gpu_.push_back({phase, compute.record_time()});
  } else {
    const Clock::time_point now = Clock::now();
    if (begun_) {
      host_s_[static_cast<size_t>(phase_)] += std::chrono::duration<double>(now - since_).count();
    }
    since_ = now;
  }
  begun_ = true;
  flight_log().enter(name_of(phase));
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
  Timeline rest = *this;
  rest.host_s_ = {};
  if (!on_gpu_.empty()) {
    rest.on_gpu_ = {on_gpu_.back()};
  }
  return std::exchange(*this, std::move(rest));
}

PhaseSeconds Timeline::seconds() const {
  PhaseSeconds seconds = host_s_;
  for (size_t i = 0; i + 1 < on_gpu_.size(); ++i) {
    seconds[static_cast<size_t>(on_gpu_[i].phase)] +=
        on_gpu_[i + 1].event.seconds_since(on_gpu_[i].event);
  }
  return seconds;
}

}  // namespace tandem

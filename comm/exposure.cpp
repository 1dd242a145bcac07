#include "comm/exposure.h"

#include <chrono>

namespace tandem {

void Exposure::wait(Stream& compute, const Event& communication) {
  if (compute.device() == Device::kCuda) {
    const Event begin = compute.record();
    compute.wait(communication);
    on_gpu_.emplace_back(begin, compute.record());
    return;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  compute.wait(communication);
  host_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

double Exposure::seconds() const {
  double seconds = host_s_;
  for (const auto& [begin, end] : on_gpu_) {
    seconds += end.seconds_since(begin);
  }
  return seconds;
}

}  // namespace tandem

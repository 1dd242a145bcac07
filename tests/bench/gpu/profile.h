// Times each call of kernels on a stream.
#pragma once

#include <chrono>
#include <source_location>
#include <string>
#include <vector>

#include "src/device/stream.h"

namespace tandem::bench {

// Observes a stream until it is destroyed. On a GPU each call stands between two events, which add
// a few microseconds to the stream, but not to what they measure.
class Profile final : public CallObserver {
 public:
  struct Call {
    std::string place;  // "norm.cpp:141 NormOp::backward"
    std::string group;  // the folder of the place: "norm"
    int64_t phase = 0;
    double seconds = 0;
  };

  explicit Profile(Stream& stream) : stream_(stream) { stream.observe(this); }
  ~Profile() override { stream_.observe(nullptr); }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void begin(const std::source_location& place) override;
  void end() override;
  // The number of all calls from now on.
  void set_phase(int64_t phase) { phase_ = phase; }
  // All calls since the last time; waits for the device.
  std::vector<Call> take();

 private:
  using Clock = std::chrono::steady_clock;
  struct Record {
    std::source_location place;
    int64_t phase;
    Event begin{}, end{};  // on a GPU
    Clock::time_point start{};
    double seconds = 0;  // on the CPU
  };
  Stream& stream_;
  int64_t phase_ = 0;
  std::vector<Record> records_;
  std::vector<size_t> open_;  // calls may stand inside others
};

}  // namespace tandem::bench

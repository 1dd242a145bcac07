// Times each call of kernels on a stream.
#pragma once

#include <chrono>
#include <source_location>
#include <string>
#include <vector>

#include "src/device/stream.h"

namespace tandem::bench {

// Is a stream's meter until it is destroyed. On a GPU each call stands between two events, which
// add a few microseconds to the stream, but not to what they measure.
class Profile final : public Meter {
 public:
  struct Call {
    std::string place;  // "norm.cpp:141 NormOp::backward"
    std::string group;  // the folder of the place: "norm"
    int64_t phase = 0;
    double seconds = 0;
  };

  explicit Profile(Stream& stream) : stream_(stream) { stream.report_to(this); }
  ~Profile() override { stream_.report_to(nullptr); }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void call(const Work& work, const std::source_location& place,
            const std::function<void()>& run) override;
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
    double seconds = 0;    // on the CPU
  };
  Stream& stream_;
  int64_t phase_ = 0;
  std::vector<Record> records_;
};

}  // namespace tandem::bench

// How a host thread waits for other processes or a GPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace tandem {

// Waits without taking the core from a computing thread. At first it polls without sleeping,
// because a peer often answers within microseconds. Then it sleeps for an eighth of the time
// already waited, which bounds the delay that sleeping adds. Sleeping beats sched_yield: a thread
// that wakes up runs before one that computes, but a thread that yielded gets its next turn
// milliseconds later.
class Patience {
 public:
  double waited_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  void pause(double waited) const {
    if (waited > kSpin_s) {
      std::this_thread::sleep_for(
          std::chrono::duration<double>(std::clamp(waited / 8, kShortest_s, kLongest_s)));
    }
  }

 private:
  static constexpr double kSpin_s = 20e-6, kShortest_s = 20e-6, kLongest_s = 200e-6;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace tandem

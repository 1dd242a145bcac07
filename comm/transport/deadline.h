// How long a host thread waits for other ranks that send nothing.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

#include "src/trace/flight_verdict.h"

namespace tandem {

// Over after `timeout_s`, or after 10 times that while the rank that is missing is only late: it
// runs, and starts, waits for data, validates or saves. One of the waiting ranks then says for whom
// they wait, on stderr, once each time-out.
class Deadline {
 public:
  explicit Deadline(const std::atomic<double>& timeout_s) : timeout_s_(timeout_s) {}

  bool is_over(double waited_s) {
    if (waited_s <= seconds()) {
      return false;
    }
    if (timeouts_ == kMostTimeouts) {
      return true;
    }
    const LateRank late = late_rank_of_job();
    if (late.text.empty()) {
      return true;
    }
    ++timeouts_;
    if (late.is_said_here) {
      std::fprintf(stderr, "tandem: waiting for %s\n", late.text.c_str());
    }
    return false;
  }
  // After which it is over, as far as is known.
  double seconds() const { return timeout_s_ * timeouts_; }

 private:
  static constexpr int kMostTimeouts = 10;
  const std::atomic<double>& timeout_s_;
  int timeouts_ = 1;
};

}  // namespace tandem

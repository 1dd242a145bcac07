// How long a host thread waits for other ranks that send nothing.
#pragma once

#include <atomic>
#include <cstdio>
#include <utility>

#include "src/trace/flight_verdict.h"

namespace tandem {

// Over after `timeout_s`, or after 10 times that while the rank that is missing is only late: it
// runs, and starts, waits for data, validates or saves. One of the waiting ranks then says for whom
// they wait, on stderr, once each time-out. Time in which the thread that waits stood still itself,
// with its machine or with the storage of the flight records, does not count, and it waits for one
// more time-out: other ranks may have stood still with it, and what they sent is not read yet.
class Deadline {
 public:
  explicit Deadline(const std::atomic<double>& timeout_s) : timeout_s_(timeout_s) {}

  // Call it each time that nothing has come, often.
  bool is_over(double waited_s) {
    constexpr double kStoodStill_s = 5;
    const double passed_s = waited_s - std::exchange(last_s_, waited_s);
    if (passed_s > kStoodStill_s) {
      none_is_late_ = none_is_late_ && stood_still_s_ > 0;
      stood_still_s_ += passed_s;
    }
    if (waited_s <= seconds()) {
      return false;
    }
    if (timeouts_ == kMostTimeouts || none_is_late_) {
      return true;
    }
    const LateRank late = late_rank_of_job();
    none_is_late_ = late.text.empty();  // It is over at the next call, unless this took long.
    timeouts_ += none_is_late_ ? 0 : 1;
    if (late.is_said_here) {
      std::fprintf(stderr, "tandem: waiting for %s\n", late.text.c_str());
    }
    return false;
  }
  // After which it is over, as far as is known.
  double seconds() const {
    return timeout_s_ * (timeouts_ + (stood_still_s_ > 0 ? 1 : 0)) + stood_still_s_;
  }

 private:
  static constexpr int kMostTimeouts = 10;
  const std::atomic<double>& timeout_s_;
  int timeouts_ = 1;
  double last_s_ = 0;         // of the last call
  double stood_still_s_ = 0;  // sum
  bool none_is_late_ = false;
};

}  // namespace tandem

// Starts the reductions of gradient buckets in the same order on every rank.
//
// Buckets may become ready in a different order on each rank. They are started from the last to the
// first: a bucket that is ready early waits for its turn. So every rank calls the same collectives
// in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tandem {

class LaunchOrder {
 public:
  // `start`: called once for each bucket that takes part.
  explicit LaunchOrder(std::function<void(int64_t)> start) : start_(std::move(start)) {}

  // Begins a round of the marked buckets. Each of them may become ready once.
  void begin(std::vector<bool> takes_part);
  bool takes_part(int64_t index) const { return waits_[index]; }  // and is not ready yet
  void ready(int64_t index);
  // Starts the remaining buckets, ready or not.
  void finish();

 private:
  void start_ready();

  std::function<void(int64_t)> start_;
  std::vector<bool> waits_;
  std::vector<bool> takes_part_;
  int64_t left_ = 0;  // [0, left_) have not been started
};

}  // namespace tandem

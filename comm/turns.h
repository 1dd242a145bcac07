// Starts things in the same order on every rank.
//
// Buckets of gradients become ready in an order that differs between models and, with random
// delays, between ranks. They are started from the last to the first all the same: one that is
// ready early waits for its turn. So every rank starts the same collectives in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tandem {

class Turns {
 public:
  // `start`: called once for each of those that take part.
  explicit Turns(std::function<void(int64_t)> start) : start_(std::move(start)) {}

  // A round of those that are marked. Each of them becomes ready once.
  void begin(std::vector<bool> takes_part);
  bool takes_part(int64_t index) const { return waits_[index]; }  // and has not become ready
  void ready(int64_t index);
  // Starts what is left, ready or not.
  void finish();

 private:
  void start_ready();

  std::function<void(int64_t)> start_;
  std::vector<bool> waits_;
  std::vector<bool> takes_part_;
  int64_t left_ = 0;  // [0, left_) have not been started
};

}  // namespace tandem

#include "comm/reducer.h"

#include <chrono>

#include "src/core/error.h"

namespace tandem {

Reducer::Reducer(Communicator& communicator, std::vector<FlatBuffer> partial,
                 std::vector<FlatBuffer> reduced, bool overlap)
    : communicator_(communicator),
      partial_(std::move(partial)),
      reduced_(std::move(reduced)),
      overlap_(overlap) {
  require(partial_.size() == reduced_.size(), "Reducer: as many buckets before as after");
}

void Reducer::begin() {
  require(left_ == 0, "Reducer: begin() before finish()");
  left_ = static_cast<int64_t>(partial_.size());
  ready_.assign(partial_.size(), false);
}

void Reducer::ready(Stream& compute, int64_t bucket) {
  require(bucket >= 0 && bucket < static_cast<int64_t>(ready_.size()) && !ready_[bucket],
          [&] { return str("Reducer: bucket ", bucket, " is ready twice, or does not exist"); });
  ready_[bucket] = true;
  while (overlap_ && left_ > 0 && ready_[left_ - 1]) {
    start_next(compute);
  }
}

void Reducer::start_next(Stream& compute) {
  --left_;
  communicator_.stream().wait(compute.record());
  redistribute(communicator_, partial_[left_], reduced_[left_]);
}

double Reducer::finish(Stream& compute) {
  const auto begin = std::chrono::steady_clock::now();
  while (left_ > 0) {
    start_next(compute);
  }
  compute.wait(communicator_.stream().record());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace tandem

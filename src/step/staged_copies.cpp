#include "src/step/staged_copies.h"

#include <utility>

#include "src/device/copy.h"

namespace tandem {

void StagedCopies::copy(const Tensor& from, const Tensor& to) {
  tandem::copy(stream_, from, to);
  if (stream_.device() != Device::kCpu) {
    enqueued_.insert(enqueued_.end(), {from, to});
  }
}

Event StagedCopies::finish() {
  while (!in_flight_.empty() && in_flight_.front().done.reached()) {
    in_flight_.pop_front();
  }
  in_flight_.push_back({stream_.record(), std::exchange(enqueued_, {})});
  return in_flight_.back().done;
}

}  // namespace tandem

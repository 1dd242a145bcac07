#include "src/step/staged_copies.h"

#include <utility>

#include "src/device/copy.h"

namespace tandem {

void StagedCopies::copy(const Tensor& from, const Tensor& to) {
  tandem::copy(stream_, from, to);
  enqueued_.insert(enqueued_.end(), {from, to});
}

Event StagedCopies::finish() {
  while (!in_flight_.empty() && in_flight_.front().done.reached()) {
    in_flight_.pop_front();
  }
  const Event done = stream_.record();
  std::vector<Tensor> tensors = std::exchange(enqueued_, {});
  if (stream_.device() != Device::kCpu) {
    in_flight_.push_back({done, std::move(tensors)});
  }
  return done;
}

}  // namespace tandem

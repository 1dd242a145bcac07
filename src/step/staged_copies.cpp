#include "src/step/staged_copies.h"

#include <utility>

#include "src/device/copy.h"

namespace tandem {

void StagedCopies::copy(Tensor staged, const Tensor& to) {
  tandem::copy(stream_, staged, to);
  enqueued_.push_back(std::move(staged));
}

void StagedCopies::finish() {
  while (!in_flight_.empty() && in_flight_.front().done.reached()) {
    in_flight_.pop_front();
  }
  std::vector<Tensor> staged = std::exchange(enqueued_, {});
  if (stream_.device() != Device::kCpu && !staged.empty()) {
    in_flight_.push_back({stream_.record(), std::move(staged)});
  }
}

}  // namespace tandem

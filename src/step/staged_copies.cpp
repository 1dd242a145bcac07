#include "src/step/staged_copies.h"

#include <utility>

#include "src/device/copy.h"

namespace tandem {

void StagedCopies::copy(Tensor staged, const Tensor& to) {
  while (!in_flight_.empty() && in_flight_.front().done.reached()) {
    in_flight_.pop_front();
  }
  tandem::copy(stream_, staged, to);
  if (stream_.device() != Device::kCpu) {
    in_flight_.push_back({stream_.record(), std::move(staged)});
  }
}

}  // namespace tandem

// Copies between the device and host memory that is used once.
#pragma once

#include <deque>
#include <vector>

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

// Keeps page-locked memory alive until the device has read or written it, so that the host need not
// wait.
class StagedCopies {
 public:
  // The stream must outlive this.
  explicit StagedCopies(Stream& stream) : stream_(stream) {}
  // to = from, in the order of the stream. Equal dtypes and sizes. finish() must follow.
  void copy(const Tensor& from, const Tensor& to);
  // Call it after the last of some copies. Returns where they are done.
  Event finish();

 private:
  struct InFlight {
    Event done;
    std::vector<Tensor> tensors;
  };
  Stream& stream_;
  std::deque<InFlight> in_flight_;
  std::vector<Tensor> enqueued_;  // since finish()
};

}  // namespace tandem

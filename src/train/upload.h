// Brings micro-batches from the loader to the device.
#pragma once

#include <deque>

#include "src/core/tensor.h"
#include "src/data/batch.h"
#include "src/data/dataset.h"

namespace tandem {

// A micro-batch in the memory that kernels read.
struct DeviceBatch {
  Tensor input;    // tokens i32 [B, T], or images of the compute dtype [B, H, W, C]
  Tensor targets;  // i32 [B * T] or [B]; -1: no target
};

class Uploader {
 public:
  // All of these must outlive the uploader. `staging`: host memory, page-locked for a GPU.
  Uploader(Stream& stream, Memory& memory, Memory& staging, const DatasetInfo& info, DType dtype);

  // Enqueues the copies; the host does not wait for them. Error(kData) for a token or a target
  // outside its range, which kernels on a GPU would not notice.
  DeviceBatch operator()(const MicroBatch& batch);

 private:
  struct InFlight {
    Event done;
    Tensor staged;
  };
  template <class T>
  Tensor upload(const std::vector<T>& values, const Shape& shape);
  void check(const MicroBatch& batch) const;

  Stream& stream_;
  Memory& memory_;
  Memory& staging_;
  const DatasetInfo& info_;
  DType dtype_;
  std::deque<InFlight> in_flight_;  // page-locked copies that the device may still read
};

}  // namespace tandem

// Brings micro-batches from the loader to the device.
#pragma once

#include <deque>

#include "src/data/batch.h"
#include "src/data/dataset.h"
#include "src/train/device_batch.h"

namespace tandem {

class Uploader {
 public:
  // All of these must outlive the uploader. `staging`: host memory, page-locked for a GPU.
  Uploader(Stream& stream, Memory& memory, Memory& staging, const DatasetInfo& info, DType dtype);

  // Enqueues the copies; the host does not wait for them. Error(kData) for a token or a target
  // outside its range, which kernels on a GPU would not notice.
  DeviceBatch operator()(const MicroBatch& batch);
  // The memory of `samples` windows of `length` tokens, or images, with undefined contents.
  DeviceBatch blank(int64_t samples, int64_t length);

 private:
  struct InFlight {
    Event done;
    Tensor staged;
  };
  DeviceBatch bring(const MicroBatch& batch, int64_t length);
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

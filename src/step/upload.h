// Brings micro-batches from the loader to the device.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "src/data/batch.h"
#include "src/data/dataset.h"
#include "src/step/device_batch.h"
#include "src/step/staged_copies.h"

namespace tandem {

class Uploader {
 public:
  // All of these must outlive the uploader. `staging`: host memory, page-locked for a GPU.
  Uploader(Stream& stream, Memory& memory, Memory& staging, const DatasetInfo& info, DType dtype);

  // Enqueues the copies; the host does not wait for them. On a GPU all micro-batches of a size and
  // slot use the same memory: a call overwrites the micro-batch before, in the order of the stream.
  // Error(kData) for a token or a target outside its range, which GPU kernels would not notice.
  DeviceBatch upload(const MicroBatch& batch, int64_t slot = 0);
  // The memory of `samples` windows of `length` tokens, or images, with undefined contents.
  DeviceBatch blank(int64_t samples, int64_t length, int64_t slot = 0);

 private:
  struct Slot {
    Tensor input{}, placements{}, images{}, targets{};
  };
  DeviceBatch bring(const MicroBatch& batch, int64_t length, int64_t slot);
  template <class T>
  Tensor upload(const std::vector<T>& values, const Shape& shape, DType dtype, Tensor& place);

  Stream& stream_;
  Memory& memory_;
  Memory& staging_;
  const DatasetInfo& info_;
  DType dtype_;
  StagedCopies copies_;
  Tensor values_{};                                    // of the levels of images
  std::map<std::pair<int64_t, int64_t>, Slot> slots_;  // by number and samples
};

}  // namespace tandem

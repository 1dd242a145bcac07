// Brings micro-batches from the loader to the device.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "src/data/batch.h"
#include "src/data/dataset.h"
#include "src/step/device_batch.h"
#include "src/step/staged_copies.h"

namespace tandem {

// Copies to a GPU run on a stream of their own, beside the step that computes. They land in memory
// of their own, too; from there the compute stream fetches each micro-batch when its turn comes.
class Uploader {
 public:
  // All of these must outlive the uploader. `staging`: host memory, page-locked for a GPU. `dtype`:
  // of images.
  Uploader(Stream& stream, Memory& memory, Memory& staging, const DatasetInfo& info, DType dtype);

  // Enqueues the copies of a step's micro-batches, in place of those sent before; the host does not
  // wait for them. A dry run needs samples and targets only. Error(kData) for a token or a target
  // outside its range, which GPU kernels would not notice.
  void send(std::span<const MicroBatch> batches);
  // Fetches micro-batch i of those sent. Those of a size and slot stand in the same memory: a call
  // overwrites the one before, in the order of the compute stream.
  DeviceBatch fetch(int64_t i, int64_t slot = 0);

 private:
  // A micro-batch as it travels: a block of bytes, and its parts.
  struct Parcel {
    Tensor bytes, targets, positions, placements, input;
  };
  bool is_text() const { return info_.kind == DatasetKind::kText; }
  void require_ranges(const MicroBatch& batch) const;
  Parcel parcel(Memory& memory, MemoryClass memory_class, const MicroBatch& batch) const;
  Parcel packed(const MicroBatch& batch);
  const Parcel& landing(int64_t i, const MicroBatch& batch, const Parcel& packed);

  Stream& stream_;
  Stream copying_;
  Memory& memory_;
  Memory& staging_;
  const DatasetInfo& info_;
  DType dtype_;
  StagedCopies copies_;
  Tensor values_{};                                         // of the levels of images: f32 [C, 256]
  std::map<std::pair<int64_t, int64_t>, Parcel> landings_;  // by micro-step and samples
  std::map<std::pair<int64_t, int64_t>, DeviceBatch> slots_;  // by slot and samples
  std::vector<Parcel> sent_;
  Event fetched_;
};

}  // namespace tandem

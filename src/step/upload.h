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

// How large a micro-batch is, without what is in it.
struct BatchSizes {
  int64_t samples = 0;
  int64_t targets = 0;  // of all samples
  bool has_positions = false;
};

// The micro-batches of a step travel together. Copies to a GPU run on a stream of their own, beside
// the step that computes. They land in memory of their own, too; from there the compute stream
// copies them into the memory that the step reads.
class Uploader {
 public:
  // All of these must outlive the uploader. `staging`: host memory, page-locked for a GPU. `dtype`:
  // of images.
  Uploader(Stream& stream, Memory& memory, Memory& staging, const DatasetInfo& info, DType dtype);

  // Enqueues the copies of a step's micro-batches, in place of those sent before; the host does not
  // wait for them. Returns the memory that they come to, which on a GPU is the same for equal
  // sizes. Error(kData) for a token or a target outside its range, which GPU kernels would not
  // notice.
  Tensor send(std::span<const MicroBatch> batches);
  // Sends micro-batches of these sizes in a dry run, which needs no contents.
  Tensor send(std::span<const BatchSizes> batches);
  // Micro-batch i of those sent. Images are made from its pixels when the compute stream gets here:
  // those of a size stand in the same memory, and a call overwrites the ones before.
  DeviceBatch fetch(int64_t i);

 private:
  // The parts of a micro-batch as it travels.
  struct Parcel {
    Tensor input, targets, positions, placements;
  };
  bool is_text() const { return info_.kind == DatasetKind::kText; }
  void require_ranges(const MicroBatch& batch) const;
  Parcel parcel(const Tensor& block, int64_t& at, const BatchSizes& batch) const;
  std::vector<Parcel> parcels(const Tensor& block, std::span<const BatchSizes> batches) const;
  void fill(const Parcel& parts, const MicroBatch& batch) const;
  Tensor new_block(std::span<const BatchSizes> batches);
  Tensor send(Tensor block, std::span<const BatchSizes> batches);

  Stream& stream_;
  Stream copying_;
  Memory& memory_;
  Memory& staging_;
  const DatasetInfo& info_;
  DType dtype_;
  StagedCopies copies_;
  Tensor values_{};                                      // of the levels of images: f32 [C, 256]
  std::map<int64_t, std::pair<Tensor, Tensor>> places_;  // by bytes: landings and blocks
  std::map<int64_t, Tensor> images_;                     // by samples
  std::vector<Parcel> sent_;
  Event landing_is_free_;
};

}  // namespace tandem

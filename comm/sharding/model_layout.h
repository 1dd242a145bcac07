// Which of a model's parameters, gradients and optimizer state this rank holds: the flat layout
// (flat_layout.h), and for each bucket a row of ZeRO's table kZero (flat_buffer.h).
#pragma once

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "comm/sharding/flat_buffer.h"
#include "comm/sharding/flat_layout.h"
#include "comm/sharding/store_options.h"

namespace tandem {

// The groups of ranks that hold a model together. A model that is not cut is held by one group.
struct ModelGroups {
  ModelGroups(Group& all) : stage(all), data(all) {}  // NOLINT(google-explicit-constructor)
  ModelGroups(Group& all, Group& same_slices, Group* other_slices, Group* other_islands = nullptr)
      : stage(all), data(same_slices), tensor(other_slices), islands(other_islands) {}

  Group& stage;             // all of its ranks: they hold each parameter that is not cut
  Group& data;              // those that hold the same slices of parameters that are
  Group* tensor = nullptr;  // one for each slice: layers exchange rows among them; null: uncut
  // One on each island, which holds the same shards of another copy of the model; null: one island.
  Group* islands = nullptr;
  Collectives* exchange() const { return tensor ? &tensor->collectives() : nullptr; }
  int island() const { return islands ? islands->rank() : 0; }
};

// Which elements of a bucket this rank holds. Ranges are in the flat buffers, padding included.
struct BucketPlace {
  Resting rests{};
  Range whole{}, part{};  // the bucket; this rank's shard of it, if it is sharded
  Range owned{};  // each element is owned by exactly one rank of those that hold it together
  Range saved{};  // a part of that: over all islands, each element is in exactly one

  bool shards_values() const { return rests.parameters == Placement::kSharded; }
  bool shards_gradients() const { return rests.gradients == Placement::kSharded; }
  bool shards_state() const { return rests.state == Placement::kSharded; }
  // The ranges of values, of gradients, and of masters and optimizer state on this rank.
  Range values() const { return shards_values() ? part : whole; }
  Range gradients() const { return shards_gradients() ? part : whole; }
  Range state() const { return shards_state() ? part : whole; }
};

class ModelLayout {
 public:
  // Collective. Sets the id of every parameter. `blocks` are in forward order; their positions are
  // the BlockIds. `groups`: the ranks that hold the model together. `device`: where the values are.
  // The references must outlive this. Throws Error(kConfig) for a ZeRO stage that does not exist,
  // and if the layout differs between ranks.
  ModelLayout(std::vector<BlockParameters> blocks, const ModelGroups& groups, Device device,
              const StoreOptions& options);

  const FlatLayout& flat() const { return flat_; }
  const ModelGroups& groups() const { return groups_; }
  Group& stage() const { return groups_.stage; }  // all ranks that hold the model
  // The ranks that hold a bucket's parameters, sum their gradients and shard them.
  Group& group(int64_t bucket) const { return group_of(flat_.buckets()[bucket]); }
  int zero() const { return zero_; }  // 0 if there is only one shard
  const std::vector<Parameter*>& parameters() const { return parameters_; }  // by ParamId

  int64_t buckets() const { return static_cast<int64_t>(places_.size()); }
  const Bucket& bucket(int64_t bucket) const { return flat_.buckets()[bucket]; }
  const BucketPlace& place(int64_t bucket) const { return places_[bucket]; }
  std::span<Parameter* const> parameters_in(int64_t bucket) const;      // by offset
  int64_t first_trained_block() const { return first_trained_block_; }  // backward ends there

  // Sets `view` of the bucket's parameters to views of `flat`, which holds the whole bucket. Their
  // shape is stored_shape(). If `flat` is empty, so are the views.
  void bind(int64_t bucket, const Tensor& flat, Tensor Parameter::*view) const;

  // A range that an optimizer updates at once. On this rank a bucket has at most three: its
  // matrices, if options.matrices, its other parameters with weight decay, then those without.
  // Longer ones than `most` elements are cut; 0: none.
  struct Run {
    int64_t bucket = 0;
    Range range{};
    bool decay = false, matrix = false;
  };
  std::vector<Run> runs(int64_t most = 0) const;

 private:
  Group& group_of(const Bucket& bucket) const { return bucket.cut ? groups_.data : groups_.stage; }
  BucketPlace place_of(const Bucket& bucket) const;

  ModelGroups groups_;
  Device device_;
  int zero_;
  std::vector<Parameter*> parameters_;
  FlatLayout flat_;
  std::vector<Parameter*> by_offset_;
  std::vector<BucketPlace> places_;
  int64_t first_trained_block_ = std::numeric_limits<int64_t>::max();
};

// Elements `range` of a flat tensor whose first element is number `begin`.
inline Tensor slice_of(const Tensor& flat, int64_t begin, Range range) {
  return flat.slice(range.begin - begin, range.count());
}

// One allocation, handed out in pieces.
class Carver {
 public:
  Carver(Memory& memory, int64_t elements, DType dtype, MemoryClass memory_class)
      : all_(elements > 0 ? Tensor::zeros(memory, {elements}, dtype, memory_class) : Tensor()) {}
  Tensor take(int64_t elements) {
    at_ += elements;
    return all_.slice(at_ - elements, elements);
  }

 private:
  Tensor all_;
  int64_t at_ = 0;
};

}  // namespace tandem

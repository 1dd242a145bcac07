// The groups of ranks in a job.
//
// The ranks are a grid with named axes. Rank numbers count along the last axis first, so that
// neighbours along `tensor` share a node. The ranks that differ only along some axes are a group.
// Its ranks may be on several nodes (group.h).
//
//   job     All ranks. They agree on errors, on stopping and on checkpoints.
//   data    They take different samples of one global batch, and hold the same slices of one model
//           together. They sum gradients and statistics over this group, and shard over it.
//   tensor  They take the same samples, and hold different slices of the same blocks. Blocks wait
//           for what they exchange, so this group's collectives do not wait for sums of gradients.
//   stage   data x tensor: they hold the same blocks.
//   islands They hold the same shards of copies of the model. Each island trains its own copy, and
//           now and then they exchange what they moved (src/step/island_sync.h).
//
// Ranks that differ along `pipeline` hold different blocks.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/sharding/model_layout.h"

namespace tandem {

enum class Axis : uint8_t { kPipeline, kIslands, kData, kTensor };
inline constexpr int kAxes = 4;

// The number of ranks along each axis. 0 for `data`: as many as there are.
struct MeshShape {
  int pipeline = 1, islands = 1, data = 0, tensor = 1;
};

class Mesh {
 public:
  // Collective. `job`, `collectives`: of all ranks; these and `memory` must outlive this.
  // `node_of_rank`: the same on all ranks. Throws Error(kInternal) unless the axes multiply to the
  // number of ranks, and what Group throws.
  Mesh(Control& job, Collectives& collectives, Memory& memory, std::vector<int> node_of_rank,
       Sharing sharing = Sharing::kWorld, const MeshShape& shape = {});

  Control& job() const { return job_; }
  // The groups that this rank is in.
  Group& data() const { return *data_.group; }
  Group* tensor() const { return tensor_.group.get(); }  // null if the axis has one rank
  Group& stage() const {
    return stage_.group ? *stage_.group : tensor_.group ? *tensor_.group : data();
  }
  Group* islands() const { return islands_.group.get(); }  // null if the axis has one rank
  ModelGroups model() const { return {stage(), data(), tensor(), islands()}; }
  Cut cut() const { return {index(Axis::kTensor), size(Axis::kTensor)}; }  // what this rank has

  int size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int index(Axis axis) const { return index_of(job_.rank(), axis); }  // of this rank
  // The number of data groups in the job, and of this rank's.
  int data_groups() const { return job_.size() / size(Axis::kData); }
  int data_group() const { return color_of(job_.rank(), {Axis::kData}); }
  // The number of stages in the job, all of one size, and of this rank's.
  int stages() const { return job_.size() / (size(Axis::kData) * size(Axis::kTensor)); }
  int stage_number() const { return color_of(job_.rank(), {Axis::kData, Axis::kTensor}); }

  // What all groups have sent, control messages too. Tensors that islands exchange do not count,
  // because that may go on beside a step.
  WireCount wire() const;

 private:
  using Axes = std::initializer_list<Axis>;
  struct Member {
    std::unique_ptr<Control> control;          // null: the job's
    std::unique_ptr<Collectives> collectives;  // null: the job's
    std::unique_ptr<Group> group;
  };

  int index_of(int rank, Axis axis) const;
  int color_of(int rank, Axes axes) const;
  // `apart`: work of the group need not wait for that of others, even if it has the same ranks.
  Member member(Axes axes, Memory& memory, const std::vector<int>& node_of_rank, Sharing sharing,
                bool apart = false);

  Control& job_;
  Collectives& collectives_;
  std::array<int, kAxes> sizes_;
  Member data_, tensor_, stage_, islands_;  // each of other ranks; empty if one would be the same
};

}  // namespace tandem

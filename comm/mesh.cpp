#include "comm/mesh.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "comm/transport/ranks.h"
#include "src/core/error.h"

namespace tandem {

namespace {

std::array<int, kAxes> sizes_of(const MeshShape& shape, int ranks) {
  std::array<int, kAxes> sizes = {shape.pipeline, shape.islands, 1, shape.tensor};
  const int others = std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies());
  int& data = sizes[static_cast<size_t>(Axis::kData)];
  data = shape.data > 0 || others < 1 ? shape.data : ranks / others;
  require(std::ranges::min(sizes) > 0 && others * data == ranks, "Mesh: axes of ", sizes[0], " x ",
          sizes[1], " x ", sizes[2], " x ", sizes[3], " ranks in a job of ", ranks);
  return sizes;
}

}  // namespace

Mesh::Mesh(Control& job, Collectives& collectives, Memory& memory, std::vector<int> node_of_rank,
           Sharing sharing, const MeshShape& shape)
    : job_(job), collectives_(collectives), sizes_(sizes_of(shape, job.size())) {
  require(std::ssize(node_of_rank) == job.size(), "Mesh: there is not one node for each rank");
  job_.set_nodes(node_of_rank);
  collectives_.set_nodes(node_of_rank);
  data_ = member({Axis::kData}, memory, node_of_rank, sharing);
  if (size(Axis::kTensor) > 1) {
    tensor_ = member({Axis::kTensor}, memory, node_of_rank, sharing, true);
    if (size(Axis::kData) > 1) {
      stage_ = member({Axis::kData, Axis::kTensor}, memory, node_of_rank, sharing);
    }
  }
  if (size(Axis::kIslands) > 1) {
    islands_ = member({Axis::kIslands}, memory, node_of_rank, Sharing::kWorld, true);
  }
}

int Mesh::index_of(int rank, Axis axis) const {
  for (size_t inner = kAxes - 1; inner > static_cast<size_t>(axis); --inner) {
    rank /= sizes_[inner];
  }
  return rank % size(axis);
}

// The number of the group, along these axes, that the rank is in.
int Mesh::color_of(int rank, Axes axes) const {
  int color = 0;
  for (const Axis axis : {Axis::kPipeline, Axis::kIslands, Axis::kData, Axis::kTensor}) {
    if (std::ranges::count(axes, axis) == 0) {
      color = color * size(axis) + index_of(rank, axis);
    }
  }
  return color;
}

Mesh::Member Mesh::member(Axes axes, Memory& memory, const std::vector<int>& node_of_rank,
                          Sharing sharing, bool apart) {
  std::vector<int> colors;
  for (int rank = 0; rank < job_.size(); ++rank) {
    colors.push_back(color_of(rank, axes));
  }
  Member member;
  Ranks ranks(job_.rank(), job_.size());
  ranks.set_nodes(node_of_rank);
  if (apart || std::ranges::max(colors) > 0) {
    member.control = job_.split(colors);
    member.collectives = apart ? collectives_.split_apart(colors) : collectives_.split(colors);
    ranks = ranks.split(colors);
  }
  member.group = std::make_unique<Group>(member.control ? *member.control : job_,
                                         member.collectives ? *member.collectives : collectives_,
                                         memory, ranks.nodes(), sharing);
  return member;
}

WireCount Mesh::wire() const {
  WireCount count;
  bool has_job = false;
  for (const Member* member : {&data_, &tensor_, &stage_}) {
    if (member->group) {
      count += member->group->wire();
      has_job = has_job || !member->control;
    }
  }
  if (islands_.control) {
    count += islands_.control->wire();
  }
  if (!has_job) {
    count += job_.wire();
    count += collectives_.wire();
  }
  return count;
}

}  // namespace tandem

#include "comm/mesh.h"

#include <algorithm>

#include "comm/transport/ranks.h"
#include "src/core/error.h"

namespace tandem {

Mesh::Mesh(Control& job, Collectives& collectives, Memory& memory, std::vector<int> node_of_rank,
           Sharing sharing, std::vector<int> data_of_rank)
    : job_(job), collectives_(collectives) {
  require(std::ssize(node_of_rank) == job.size(), "Mesh: there is not one node for each rank");
  job_.set_nodes(node_of_rank);
  collectives_.set_nodes(node_of_rank);
  if (!data_of_rank.empty()) {
    require(std::ssize(data_of_rank) == job.size(), "Mesh: there is not one group for each rank");
    data_groups_ = std::ranges::max(data_of_rank) + 1;
    data_group_ = data_of_rank[job.rank()];
  }
  if (data_groups_ > 1) {
    data_control_ = job_.split(data_of_rank);
    data_collectives_ = collectives_.split(data_of_rank);
    Ranks all(job.rank(), job.size());
    all.set_nodes(node_of_rank);
    node_of_rank = all.split(data_of_rank).nodes();
  }
  data_ = std::make_unique<Group>(data_control_ ? *data_control_ : job_,
                                      data_collectives_ ? *data_collectives_ : collectives_, memory,
                                      node_of_rank, sharing);
}

WireCount Mesh::wire() const {
  WireCount count = data_->wire();
  if (data_control_) {
    count += job_.wire();
    count += collectives_.wire();
  }
  return count;
}

}  // namespace tandem

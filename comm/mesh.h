// The groups of ranks in a job.
//
// `job` is all ranks: they agree on errors, on stopping and on checkpoints. `data` is a
// data-parallel group: its ranks take different samples of one global batch and hold one model
// together. They sum gradients and statistics over this group, and shard over it. Its ranks may be
// on several nodes (group.h).
#pragma once

#include <memory>
#include <vector>

#include "comm/sharding/group.h"

namespace tandem {

class Mesh {
 public:
  // Collective. `job`, `collectives`: of all ranks; these and `memory` must outlive this.
  // `node_of_rank`: the same on all ranks. `data_of_rank`: the number of each rank's data group,
  // from 0 on; empty: all ranks are one group. Throws what Group throws.
  Mesh(Control& job, Collectives& collectives, Memory& memory, std::vector<int> node_of_rank,
       Sharing sharing = Sharing::kWorld, std::vector<int> data_of_rank = {});

  Control& job() const { return job_; }
  Group& data() const { return *data_; }  // of this rank
  int data_groups() const { return data_groups_; }
  int data_group() const { return data_group_; }  // of this rank

  WireCount wire() const;  // of all groups, control messages too

 private:
  Control& job_;
  Collectives& collectives_;
  int data_groups_ = 1, data_group_ = 0;
  std::unique_ptr<Control> data_control_;          // null: the job's
  std::unique_ptr<Collectives> data_collectives_;  // null: the job's
  std::unique_ptr<Group> data_;
};

}  // namespace tandem

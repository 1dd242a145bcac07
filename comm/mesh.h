// The groups into which the ranks of a job fall.
//
// All of them are the job: they agree on errors, on stopping and on checkpoints. `data` is the
// group of ranks that see different samples of one global batch and hold one model together: it
// shares out samples, sums gradients and statistics, and shards. Inside it are nodes (hierarchy.h).
#pragma once

#include <memory>
#include <vector>

#include "comm/hierarchy.h"

namespace tandem {

class Mesh {
 public:
  // Collective. `job`, `collectives`: of all ranks; these and `memory` must outlive this.
  // `node_of_rank`: the same on all ranks. `data_of_rank`: the number of each rank's data group,
  // from 0 on; empty: all ranks are one. Throws as Hierarchy.
  Mesh(Control& job, Collectives& collectives, Memory& memory, std::vector<int> node_of_rank,
       Sharing sharing = Sharing::kWorld, std::vector<int> data_of_rank = {});

  Control& job() const { return job_; }
  Hierarchy& data() const { return *data_; }  // this rank's
  int data_groups() const { return data_groups_; }
  int data_group() const { return data_group_; }  // the number of this rank's

  WireCount wire() const;  // of all groups, control messages too

 private:
  Control& job_;
  Collectives& collectives_;
  int data_groups_ = 1, data_group_ = 0;
  std::unique_ptr<Control> data_control_;          // null: the job's
  std::unique_ptr<Collectives> data_collectives_;  // null: those of all ranks
  std::unique_ptr<Hierarchy> data_;
};

}  // namespace tandem

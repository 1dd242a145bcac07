// A group of ranks that take part in the same collectives, and the node of each. Errors name a rank
// by its number in the job.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class Ranks {
 public:
  // All ranks of the job, on one node.
  Ranks(int rank, int size);
  // The ranks with this rank's color, in the same order. `colors`: one for each rank of this group.
  Ranks split(std::span<const int> colors) const;
  // `node_of_rank`: one for each rank of this group.
  void set_nodes(std::span<const int> node_of_rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(job_ranks_.size()); }
  int next() const { return (rank_ + 1) % size(); }         // in a ring
  const std::vector<int>& nodes() const { return nodes_; }  // by rank
  int job_rank(int rank) const { return job_ranks_[rank]; }
  bool is_away(int rank) const { return nodes_[rank] != nodes_[rank_]; }  // on another node

  std::string name() const;  // "ranks 1, 3", or "this run" for the whole job
  // "all_reduce of 64 bytes (collective 2 of this run, rank 1 of 4)"; for a group that is not the
  // whole job: "... (collective 2 of ranks 1, 3, rank 1 of 4)".
  std::string place(std::string_view collective, int64_t bytes, int64_t number) const;

 private:
  Ranks() = default;

  int rank_ = 0;
  int job_size_ = 1;
  std::vector<int> job_ranks_, nodes_;  // by rank
};

}  // namespace tandem

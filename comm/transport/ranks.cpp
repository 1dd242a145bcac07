#include "comm/transport/ranks.h"

#include <numeric>

#include "src/core/error.h"
#include "src/core/mapped.h"

namespace tandem {

Ranks::Ranks(int rank, int size)
    : rank_(rank),
      job_size_(size),
      job_ranks_(static_cast<size_t>(size)),
      nodes_(static_cast<size_t>(size), 0) {
  std::iota(job_ranks_.begin(), job_ranks_.end(), 0);
}

Ranks Ranks::split(std::span<const int> colors) const {
  require(colors.size() == job_ranks_.size(), "split: there is not one color for each rank");
  Ranks part;
  part.job_size_ = job_size_;
  for (size_t r = 0; r < colors.size(); ++r) {
    if (colors[r] != colors[rank_]) {
      continue;
    }
    if (static_cast<int>(r) == rank_) {
      part.rank_ = part.size();
    }
    part.job_ranks_.push_back(job_ranks_[r]);
    part.nodes_.push_back(nodes_[r]);
  }
  return part;
}

void Ranks::set_nodes(std::span<const int> node_of_rank) {
  require(node_of_rank.size() == nodes_.size(), "set_nodes: there is not one node for each rank");
  nodes_.assign(node_of_rank.begin(), node_of_rank.end());
}

namespace {

constexpr size_t kMostNamed = 8;

std::string named(const std::vector<int>& ranks) {
  if (ranks.size() > kMostNamed) {
    return str(ranks.size(), " ranks from ", ranks.front(), " to ", ranks.back());
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") +
         joined(mapped(ranks, [](int rank) { return str(rank); }));
}

}  // namespace

std::string Ranks::name() const { return size() < job_size_ ? named(job_ranks_) : "this run"; }

std::string Ranks::place(std::string_view collective, int64_t bytes, int64_t number) const {
  return str(collective, " of ", bytes, " bytes (collective ", number, " of ", name(), ", rank ",
             job_ranks_[rank_], " of ", job_size_, ")");
}

}  // namespace tandem

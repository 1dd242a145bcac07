#include "comm/transport/dry_collectives.h"

#include <algorithm>

#include "comm/transport/ring.h"
#include "src/core/error.h"

namespace tandem {

DryCollectives::DryCollectives(int rank, int size, Device device, const Speed& speed,
                               const Network& network)
    : stream_(std::make_shared<Stream>(Stream::dry(device, speed))),
      network_(network),
      rank_(rank),
      ranks_here_(size),
      nodes_(static_cast<size_t>(size), 0) {
  require(rank >= 0 && rank < size,
          [&] { return str("DryCollectives: there is no rank ", rank, " of ", size); });
}

void DryCollectives::count(Traffic traffic, int to, int64_t bytes) {
  WireCount::Bytes& sent = wire_.by[static_cast<size_t>(traffic)];
  (nodes_[to] == nodes_[rank_] ? sent.inside : sent.between) += bytes;
}

// A collective in which each rank sends `bytes` to the next one, in pieces that go around the ring
// `passes` times.
void DryCollectives::pass_on(Traffic traffic, int passes, int64_t bytes) {
  wire_.collectives += traffic != Traffic::kControl;
  count(traffic, next(), bytes);
  if (bytes == 0) {
    return;
  }
  int away = 0;  // number of links between nodes
  for (int r = 0; r < size(); ++r) {
    away += nodes_[r] != nodes_[(r + 1) % size()];
  }
  // Of one pass. All ranks of this node send equally many bytes at the same time and share the
  // node's link. A ring leaves the node by one link, so the group's ranks on this node count once.
  const auto here = static_cast<double>(std::ranges::count(nodes_, nodes_[rank_]));
  const double inside = static_cast<double>(bytes) / passes, between = inside * ranks_here_ / here;
  const double around =
      away * network_.between.latency(between) + (size() - away) * network_.inside.latency(inside);
  const double transfer = std::max(inside / network_.inside.rate(inside),
                                   away > 0 ? between / network_.between.rate(between) : 0);
  stream_->spend(passes * (around * (size() - 1) / size() + transfer));
}

void DryCollectives::all_reduce(const Tensor& inout, Traffic traffic) {
  const Parts parts{inout.elements(), size()};
  const int64_t sent = 2 * inout.elements() - parts.count(rank_) - parts.count(next());
  pass_on(traffic, 2, sent * size_of(inout.dtype()));
}

void DryCollectives::reduce_scatter(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && in.elements() == out.elements() * size(),
          [&] { return str("reduce_scatter: ", in.shape(), " into shards of ", out.shape()); });
  pass_on(Traffic::kReduceScatter, 1, (size() - 1) * out.bytes());
}

void DryCollectives::all_gather(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && out.elements() == in.elements() * size(),
          [&] { return str("all_gather: shards of ", in.shape(), " into ", out.shape()); });
  pass_on(Traffic::kAllGather, 1, (size() - 1) * in.bytes());
}

void DryCollectives::all_to_all(const Tensor& in, const Tensor& out) {
  require(
      in.dtype() == out.dtype() && in.elements() == out.elements() && in.elements() % size() == 0,
      [&] { return str("all_to_all: ", in.shape(), " into ", out.shape()); });
  ++wire_.collectives;
  const int64_t part = in.bytes() / size();
  int64_t inside = 0, between = 0;
  for (int to = 0; to < size(); ++to) {
    if (to != rank_) {
      count(Traffic::kAllToAll, to, part);
      (nodes_[to] == nodes_[rank_] ? inside : between) += part;
    }
  }
  const auto seconds = [](const Link& link, double passing) {
    return passing > 0 ? link.latency(passing) + passing / link.rate(passing) : 0;
  };
  stream_->spend(std::max(seconds(network_.inside, static_cast<double>(inside)),
                          seconds(network_.between, static_cast<double>(between) * ranks_here_)));
}

void DryCollectives::broadcast(const Tensor& inout, int root) {
  require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
  pass_on(Traffic::kBroadcast, 1, next() == root ? 0 : inout.bytes());
}

std::unique_ptr<Collectives> DryCollectives::split(std::span<const int> colors) {
  require(std::ssize(colors) == size(), "split: there is not one color for each rank");
  auto part = std::unique_ptr<DryCollectives>(new DryCollectives(stream_, network_));
  part->ranks_here_ = ranks_here_;
  for (int r = 0; r < size(); ++r) {
    if (colors[r] == colors[rank_]) {
      part->rank_ = r == rank_ ? part->size() : part->rank_;
      part->nodes_.push_back(nodes_[r]);
    }
  }
  return part;
}

void DryCollectives::set_nodes(std::span<const int> node_of_rank) {
  require(std::ssize(node_of_rank) == size(), "set_nodes: there is not one node for each rank");
  nodes_.assign(node_of_rank.begin(), node_of_rank.end());
  ranks_here_ = static_cast<int>(std::ranges::count(nodes_, nodes_[rank_]));
}

}  // namespace tandem

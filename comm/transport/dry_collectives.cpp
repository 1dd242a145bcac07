#include "comm/transport/dry_collectives.h"

#include <algorithm>

#include "comm/transport/ring.h"
#include "src/core/error.h"

namespace tandem {

DryCollectives::DryCollectives(int rank, int size, Device device, const Speed& speed,
                               const Network& network)
    : DryCollectives(std::make_shared<Stream>(Stream::dry(device, speed)), network,
                     Ranks(rank, size), size) {
  require(rank >= 0 && rank < size, "DryCollectives: there is no rank ", rank, " of ", size);
}

void DryCollectives::count_nodes() {
  const std::vector<int>& nodes = group_.nodes();
  on_this_node_ = static_cast<int>(std::ranges::count(nodes, nodes[rank()]));
  away_ = 0;
  for (int r = 0; r < size(); ++r) {
    away_ += nodes[r] != nodes[(r + 1) % size()];
  }
}

// A collective in which each rank sends `bytes` to the next one, in pieces that go around the ring
// `passes` times.
void DryCollectives::pass_on(Traffic traffic, int passes, int64_t bytes) {
  wire_.collectives += traffic != Traffic::kControl;
  wire_.add(traffic, group_.is_away(group_.next()), bytes);
  if (bytes == 0) {
    return;
  }
  // Of one pass. All ranks of this node send equally many bytes at the same time and share the
  // node's link. A ring leaves the node by one link, so the group's ranks on this node count once.
  const double inside = static_cast<double>(bytes) / passes;
  const double between = inside * ranks_here_ / on_this_node_;
  const double around = away_ * network_.between.latency(between) +
                        (size() - away_) * network_.inside.latency(inside);
  const double transfer = std::max(inside / network_.inside.rate(inside),
                                   away_ > 0 ? between / network_.between.rate(between) : 0);
  stream_->clock().advance(passes * (around * (size() - 1) / size() + transfer));
}

void DryCollectives::all_reduce(const Tensor& inout, Traffic traffic) {
  const RingChunks parts{inout.elements(), size()};
  const int64_t sent = 2 * inout.elements() - parts.count(rank()) - parts.count(group_.next());
  pass_on(traffic, 2, sent * size_of(inout.dtype()));
}

void DryCollectives::reduce_scatter(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && in.elements() == out.elements() * size(),
          "reduce_scatter: ", in.shape(), " into shards of ", out.shape());
  pass_on(Traffic::kReduceScatter, 1, (size() - 1) * out.bytes());
}

void DryCollectives::all_gather(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && out.elements() == in.elements() * size(),
          "all_gather: shards of ", in.shape(), " into ", out.shape());
  pass_on(Traffic::kAllGather, 1, (size() - 1) * in.bytes());
}

void DryCollectives::all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                                  std::span<const Range> received, int64_t) {
  require_chunks(in, sent, out, received);
  ++wire_.collectives;
  int64_t inside = 0, between = 0;
  for (int to = 0; to < size(); ++to) {
    if (to != rank()) {
      (group_.is_away(to) ? between : inside) += sent[to].count() * size_of(in.dtype());
    }
  }
  wire_.add(Traffic::kAllToAll, false, inside);
  wire_.add(Traffic::kAllToAll, true, between);
  const auto seconds = [](const Link& link, double passing) {
    const double times = passing < link.short_below ? 1 : link.all_to_all;
    return passing > 0 ? times * (link.latency(passing) + passing / link.rate(passing)) : 0;
  };
  stream_->clock().advance(
      std::max(seconds(network_.inside, static_cast<double>(inside)),
               seconds(network_.between, static_cast<double>(between) * ranks_here_)));
}

std::unique_ptr<Collectives> DryCollectives::split(std::span<const int> colors) {
  return split_onto(stream_, colors);
}

std::unique_ptr<Collectives> DryCollectives::split_apart(std::span<const int> colors) {
  return split_onto(
      std::make_shared<Stream>(Stream::dry(stream_->device(), stream_->clock().speed())), colors);
}

std::unique_ptr<Collectives> DryCollectives::split_onto(std::shared_ptr<Stream> stream,
                                                        std::span<const int> colors) const {
  return std::unique_ptr<Collectives>(
      new DryCollectives(std::move(stream), network_, group_.split(colors), ranks_here_));
}

void DryCollectives::set_nodes(std::span<const int> node_of_rank) {
  group_.set_nodes(node_of_rank);
  count_nodes();
  ranks_here_ = on_this_node_;
}

}  // namespace tandem

// Collectives for estimates. They send nothing, but count exactly the bytes that real collectives
// would send, and advance a simulated clock by the time that this would take. One process stands
// for all ranks.
//
// Time of a collective: the latency of each link around the ring, plus the bytes that a rank sends
// divided by its share of the bandwidth (the alpha-beta model, Hockney 1994). Inside a node every
// rank has its own link; between nodes the ranks of a node share the node's link. Links that were
// measured may have other figures for short messages.
#pragma once

#include <memory>

#include "comm/transport/ranks.h"
#include "src/device/ranks/collectives.h"

namespace tandem {

// The time of n bytes from one end to the other, in one direction: latency_s + n / bytes_per_s.
struct Link {
  double latency_s = 0;
  double bytes_per_s = 1;
  // The same for messages of fewer bytes than `short_below`.
  double short_below = 0, short_latency_s = 0, short_bytes_per_s = 1;
  // An all_to_all of others takes this many times as long until its slowest rank is done, because
  // messages to many ranks share links unevenly.
  double all_to_all = 1;

  double latency(double bytes) const { return bytes < short_below ? short_latency_s : latency_s; }
  double rate(double bytes) const { return bytes < short_below ? short_bytes_per_s : bytes_per_s; }
};

struct Network {
  Link inside;   // from a rank to others on its node
  Link between;  // from a node to other nodes
};

class DryCollectives final : public Collectives {
 public:
  // Stands for rank `rank` of `size`, all on one node until set_nodes(). stream() is a dry stream
  // of `device`; sums and conversions on it take time by `speed`.
  DryCollectives(int rank, int size, Device device, const Speed& speed, const Network& network);

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Stream& stream() override { return *stream_; }

  void all_reduce(const Tensor& inout, Traffic traffic) override;
  void reduce_scatter(const Tensor& in, const Tensor& out) override;
  void all_gather(const Tensor& in, const Tensor& out) override;
  void all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                    std::span<const Range> received, int64_t agreed_bytes) override;
  std::unique_ptr<Collectives> split(std::span<const int> colors) override;
  std::unique_ptr<Collectives> split_apart(std::span<const int> colors) override;
  void set_nodes(std::span<const int> node_of_rank) override;
  WireCount wire() const override { return wire_; }

 private:
  DryCollectives(std::shared_ptr<Stream> stream, const Network& network, Ranks group,
                 int ranks_here)
      : stream_(std::move(stream)),
        network_(network),
        group_(std::move(group)),
        ranks_here_(ranks_here) {
    count_nodes();
  }
  std::unique_ptr<Collectives> split_onto(std::shared_ptr<Stream> stream,
                                          std::span<const int> colors) const;
  void count_nodes();
  void pass_on(Traffic traffic, int passes, int64_t bytes);

  std::shared_ptr<Stream> stream_;  // shared with splits
  Network network_;
  Ranks group_;
  int on_this_node_ = 1,
      away_ = 0;    // of the group: ranks on this node; links between nodes in a ring
  int ranks_here_;  // of the job, on this rank's node
  WireCount wire_;
};

}  // namespace tandem

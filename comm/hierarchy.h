// The ranks of a group as nodes with ranks inside: collectives that move most bytes inside the
// nodes and as few as possible between them, and which part of a sharded array rests where.
//
// Inside a node links are many times faster than between nodes. Each collective is cut into one
// among the ranks of a node and one among the ranks that have the same place on their nodes: of n
// nodes with g ranks each, a rank sends 1/g of what it would send between nodes in a flat ring
// (Mikami et al. 2018, "Massively distributed SGD", 2D-torus all-reduce).
//
// With one node, with one rank a node, or with nodes of different sizes, everything is flat.
//
// A sum of bf16 needs as much scratch as the largest array had so far; where it grows the host
// waits for stream() and for the memory's stream. As with all memory, what the compute stream was
// given before a call must be behind stream() when the call is made, and stream() must be done
// before this ends.
#pragma once

#include <memory>
#include <vector>

#include "comm/collectives.h"
#include "comm/control.h"

namespace tandem {

enum class Sharing : uint8_t {
  kWorld,  // a sharded array has one part for each rank of the group
  kNode,   // ... for each rank of a node, the same on all nodes (hybrid sharding)
};

class Hierarchy {
 public:
  // Collective. `control`: of the same ranks. `memory`: for what sums of bf16 need while they are
  // under way. All three must outlive this. `node_of_rank`: the same on all ranks. Throws
  // Error(kConfig) when kNode is asked for and nodes have different numbers of ranks.
  Hierarchy(Control& control, Collectives& collectives, Memory& memory,
            const std::vector<int>& node_of_rank, Sharing sharing = Sharing::kWorld);

  Control& control() const { return control_; }
  Collectives& collectives() const { return collectives_; }
  int rank() const { return collectives_.rank(); }
  int size() const { return collectives_.size(); }
  Stream& stream() const { return collectives_.stream(); }
  bool is_flat() const { return !inside_; }
  int node_size() const { return node_size_; }  // ranks a node; 0 where nodes differ

  // Of a sharded array: into how many parts, which one is this rank's, how many ranks have the
  // same one, and the number of this rank among those.
  int parts() const { return parts_; }
  int part() const { return part_; }
  int replicas() const { return size() / parts_; }
  int replica() const { return replica_; }

  // As in Collectives, asynchronous on stream(), with parts() and part() in the place of size() and
  // rank(). Elements must be a multiple of size().
  //
  // Sums of f32, i64; and of bf16, which are added in f32 in the order of ranks and rounded once on
  // each level: then `out` of reduce_scatter is f32, and all_reduce leaves the rounded sum.
  void all_reduce(const Tensor& inout) const;
  void reduce_scatter(const Tensor& in, const Tensor& out) const;
  void all_gather(const Tensor& in, const Tensor& out) const;

  // Like Collectives::wait, for all levels.
  void wait(const Event& event) const { collectives_.wait(event); }
  WireCount wire() const;  // of all levels, control messages too

 private:
  template <class F>
  void enqueue(Device device, F work) const;
  Tensor scratch(int64_t n) const;
  void assign(const Tensor& in, const Tensor& out) const;
  void scatter_sum(Collectives& group, const Tensor& in, const Tensor& out) const;
  void sum(Collectives& group, const Tensor& inout) const;
  void require_parts(const char* collective, const Tensor& whole, const Tensor& part) const;

  Control& control_;
  Collectives& collectives_;
  Memory& memory_;
  std::unique_ptr<Collectives> inside_, between_;  // null: flat
  Sharing sharing_;
  int node_size_ = 1, parts_ = 1, part_ = 0, replica_ = 0;
  mutable Tensor scratch_;  // bf16; grows
};

// The node of each rank: numbers of equal host names, in the order of their first rank; or of
// `node_size` neighbouring ranks each, unless that is 0. Collective. Throws Error(kConfig) when
// node_size does not divide the ranks.
std::vector<int> nodes_of(Control& job, const std::string& host, int node_size);

}  // namespace tandem

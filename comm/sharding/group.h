// A group of ranks: its control messages, its collectives, and which shard of a sharded array each
// rank holds. The collectives know which ranks share a node. They move most bytes inside nodes and
// as few as possible between them.
//
// Links inside a node are many times faster than links between nodes. So each collective has two
// levels: one among the ranks of a node, and one among the ranks that have the same place on their
// nodes. With g ranks on each node, a rank then sends 1/g of the bytes that a flat ring would send
// between nodes (Mikami et al. 2018, "Massively distributed SGD", 2D-torus all-reduce).
//
// With 1 node, with 1 rank on each node, or with nodes of different sizes, there is only one level:
// the collectives are flat.
//
// Sums of bf16 and messages of eight bits need scratch memory for the largest array so far. When it
// grows, the host waits for stream() and for the memory's stream. Before a call, stream() must
// already wait for the compute work that produced the inputs. All work on stream() must be done
// before this object is destroyed.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/sharding/eight_bits/blocks.h"
#include "comm/sharding/store_options.h"
#include "src/device/ranks/collectives.h"
#include "src/device/ranks/control.h"

namespace tandem {

// How messages of eight bits are rounded; empty: elements are sent as they are.
using EightBits = std::optional<BlockRounding>;

class Group {
 public:
  // Collective. `control`: of the same ranks. `memory`: for the scratch memory. All
  // three references must outlive this. `node_of_rank`: the same on all ranks. Throws
  // Error(kConfig) if `sharing` is kNode and nodes have different numbers of ranks.
  Group(Control& control, Collectives& collectives, Memory& memory,
        const std::vector<int>& node_of_rank, Sharing sharing = Sharing::kWorld);

  Control& control() const { return control_; }
  Collectives& collectives() const { return collectives_; }
  int rank() const { return collectives_.rank(); }
  int size() const { return collectives_.size(); }
  Stream& stream() const { return collectives_.stream(); }
  bool is_flat() const { return !inside_; }
  int node_size() const { return node_size_; }  // ranks on each node; 0 if they differ

  // Of a sharded array: the number of shards, this rank's shard, the number of ranks that hold the
  // same shard, and this rank's number among those.
  int parts() const { return parts_; }
  int part() const { return part_; }
  int replicas() const { return size() / parts_; }
  int replica() const { return replica_; }

  // As in Collectives: asynchronous on stream(). But arrays have parts() shards, and this rank's is
  // part(). The number of elements must be a multiple of size().
  //
  // Dtypes of sums: f32, i64 and bf16. bf16 is added in f32 in the order of ranks and rounded once
  // on each level. For bf16, `out` of reduce_scatter is f32, and all_reduce leaves the rounded sum.
  //
  // `eight_bits`: f32 is sent in blocks (eight_bits/blocks.h), where there are two levels only
  // between nodes. Shards are a multiple of kBlockElements. Sums are added in f32 in the order of
  // ranks, and all_reduce rounds its sum once more, in the next turn. all_gather, also of bf16 and
  // fp16, gives all ranks the rounded elements, those of their own shard too.
  void all_reduce(const Tensor& inout, const EightBits& eight_bits = {}) const;
  // Adds f32 or bf16 in the order of ranks, on one level. So the bits of the sum depend neither on
  // nodes nor on where an element stands in the array.
  void all_reduce_in_order(const Tensor& inout, const EightBits& eight_bits = {}) const;
  void reduce_scatter(const Tensor& in, const Tensor& out, const EightBits& eight_bits = {}) const;
  void all_gather(const Tensor& in, const Tensor& out, const EightBits& eight_bits = {}) const;

  // Brings messages of unequal sizes from each shard's rank to those of the others: as
  // Collectives::all_to_all_v, but the ranges are by part(), and ranks are those that hold one
  // array together.
  void exchange_parts(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                      std::span<const Range> received, int64_t agreed_bytes) const;

  // Like Collectives::wait, for all levels.
  void wait(const Event& event) const { collectives_.wait(event); }
  WireCount wire() const;  // of all levels, and control messages

 private:
  template <class F>
  void enqueue(Device device, F work) const;
  Tensor scratch(int64_t n, DType dtype) const;
  void assign(const Tensor& in, const Tensor& out) const;
  void write_blocks(const Tensor& in, const BlockRounding& rounding, const Tensor& message) const;
  void sum_blocks(int parts, const Tensor& messages, const Tensor& out) const;
  void gather(Collectives& group, const Tensor& in, const Tensor& out,
              const EightBits& eight_bits) const;
  void scatter_sum(Collectives& group, const Tensor& in, const Tensor& out,
                   const EightBits& eight_bits = {}, bool in_order = false) const;
  void sum(Collectives& group, const Tensor& inout, EightBits eight_bits,
           bool in_order = false) const;
  void require_divisible(const Tensor& whole) const;
  void require_parts(const char* collective, const Tensor& whole, const Tensor& part) const;

  Control& control_;
  Collectives& collectives_;
  Memory& memory_;
  std::unique_ptr<Collectives> inside_, between_;  // null: flat
  Sharing sharing_;
  int node_size_ = 1, parts_ = 1, part_ = 0, replica_ = 0;
  std::vector<int> part_of_rank_;  // among the ranks that hold one array together
  mutable Tensor scratch_;         // u8; grows
};

// The number of each rank's node. With `node_size` 0 ranks with the same host name are a node,
// numbered in the order of their first rank; otherwise `node_size` neighbouring ranks are a node.
// Throws Error(kConfig) if node_size does not divide the number of ranks. With `job`, collective.
std::vector<int> nodes_of(const std::vector<std::string>& host_of_rank, int node_size);
std::vector<int> nodes_of(Control& job, const std::string& host, int node_size);

}  // namespace tandem

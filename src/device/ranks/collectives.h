// Collectives on tensors among the ranks of a group. Gradients are summed, never averaged: the
// factor 1 / targets is in the gradient from which backward starts.
//
// Collectives are asynchronous and run in order on stream(). Every rank must call the same
// collectives in the same order.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "src/core/error.h"
#include "src/core/range.h"
#include "src/device/ranks/wire_count.h"
#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Stream& stream() = 0;

  // Blocks the host until the event is reached. Throws an Error(kTemporary) that names the
  // collective if one on stream() failed, or if nothing moved until the deadline. Use it for every
  // event that may depend on a collective. Errors of other work are thrown as by
  // event.synchronize().
  virtual void wait(const Event& event) { event.synchronize(); }

  // Dtypes of sums: f32, f64, and i64, which wraps around. All ranks get the same bits.
  //
  // Element-wise sum over ranks, in place. `traffic`, kAllReduce or kControl, only says how wire()
  // counts the bytes.
  virtual void all_reduce(const Tensor& inout, Traffic traffic = Traffic::kAllReduce) = 0;
  // in [size * n], out [n]: out becomes the sum over ranks of shard rank() of `in`. Afterwards the
  // contents of `in` are undefined. `out` may be shard rank() of `in`.
  virtual void reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  // in [n], out [size * n]: shard r of `out` becomes rank r's `in`. `in` may be shard rank() of
  // `out`. Any dtype.
  virtual void all_gather(const Tensor& in, const Tensor& out) = 0;
  // in, out [size * n], without overlap: chunk r of `out` becomes chunk rank() of rank r's `in`.
  // Any dtype.
  void all_to_all(const Tensor& in, const Tensor& out) {
    const int64_t n = in.elements() / size();
    require(out.elements() == in.elements() && n * size() == in.elements(),
            "all_to_all: ", in.shape(), " into ", out.shape(), ", ", size(), " parts");
    std::vector<Range> chunks;
    for (int64_t r = 0; r < size(); ++r) {
      chunks.push_back({r * n, (r + 1) * n});
    }
    all_to_all_v(in, chunks, out, chunks, in.bytes());
  }
  // all_to_all with unequal chunks, one for each rank: elements received[r] of `out` become
  // elements sent[rank()] of rank r's `in`, which must be as many. `in` and `out` are flat and do
  // not overlap. What `out` holds outside of these chunks is undefined afterwards. `agreed_bytes`:
  // a size on which all ranks agree, by which flight records compare their collectives.
  virtual void all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                            std::span<const Range> received, int64_t agreed_bytes) = 0;

  // Call these before and after `compute` launches the graph that holds collectives of all groups
  // of this job. The graph begins after what they have started by themselves, and ends at `done`,
  // which wait() watches.
  virtual void before_graph(Stream& /*compute*/) {}
  virtual void add_graph(const Event& /*done*/) {}

  // Collective: forms a group for each color, with its ranks in the same order as here, and returns
  // this rank's group. It uses the same stream. `colors`: one per rank, the same on all ranks. This
  // object must outlive the result.
  virtual std::unique_ptr<Collectives> split(std::span<const int> colors) = 0;
  // Splits as split() does, but the group has a stream of its own, and its collectives need not
  // wait for those that other groups have started before.
  virtual std::unique_ptr<Collectives> split_apart(std::span<const int> colors) {
    return split(colors);
  }
  // Says which node each rank is on, so that wire() can count traffic between nodes. Call it before
  // the first tensor collective; later splits inherit it. By default all ranks are on one node.
  virtual void set_nodes(std::span<const int> node_of_rank) = 0;

  // Bytes sent so far. Tensor collectives in flight may be counted only partly.
  virtual WireCount wire() const = 0;

 protected:
  // Throws unless `collective` can add elements of this dtype.
  static void require_sum(const char* collective, DType dtype) {
    require(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64, collective,
            ": cannot add ", name_of(dtype));
  }
  // Throws unless these can be the arguments of all_to_all_v.
  void require_chunks(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                      std::span<const Range> received) const {
    const auto ranks = static_cast<size_t>(size()), self = static_cast<size_t>(rank());
    const auto inside = [](std::span<const Range> chunks, const Tensor& tensor) {
      return std::ranges::all_of(chunks, [&](Range chunk) {
        return 0 <= chunk.begin && chunk.begin <= chunk.end && chunk.end <= tensor.elements();
      });
    };
    require(in.dtype() == out.dtype() && (in.bytes() == 0 || in.raw() != out.raw()) &&
                sent.size() == ranks && received.size() == ranks && inside(sent, in) &&
                inside(received, out) && sent[self].count() == received[self].count(),
            "all_to_all: ", in.shape(), " into ", out.shape());
  }
};

}  // namespace tandem

// Collectives on tensors among the ranks of a group. Sums are pure: averaging is folded into the
// backward seed.
//
// They are asynchronous: they run in order on stream(), and every rank must call the same ones in
// the same order.
#pragma once

#include <memory>
#include <span>

#include "comm/wire_count.h"
#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Stream& stream() = 0;

  // Blocks the host until the event. Throws Error(kTemporary) that names the collective when one of
  // stream() failed or nothing has moved for the deadline. For waits behind which a collective may
  // stand; errors of the stream itself come out of event.synchronize() alike.
  virtual void wait(const Event& event) { event.synchronize(); }

  // Sums are of f32, f64 or i64. i64 wraps around. All ranks get the same bits.
  //
  // Element-wise sum over ranks, in place. `traffic`: kAllReduce or kControl, for the count alone.
  virtual void all_reduce(const Tensor& inout, Traffic traffic = Traffic::kAllReduce) = 0;
  // in [size * n], out [n]: out becomes the sum over ranks of part rank() of in. `in` is scratch
  // afterwards; `out` may be part rank() of it.
  virtual void reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  // in [n], out [size * n]: part r of out becomes rank r's in. `in` may be part rank() of out. Any
  // dtype.
  virtual void all_gather(const Tensor& in, const Tensor& out) = 0;
  // in, out [size * n], apart: part r of out becomes part rank() of rank r's in. Any dtype.
  virtual void all_to_all(const Tensor& in, const Tensor& out) = 0;
  virtual void broadcast(const Tensor& inout, int root) = 0;

  // Collective: the ranks of one color, in the order of their ranks here, as collectives on the
  // same stream. `colors`: of every rank, the same on all. This one must outlive it.
  virtual std::unique_ptr<Collectives> split(std::span<const int> colors) = 0;
  // Says which node each rank is on, for wire(); before the first tensor collective. Splits made
  // afterwards know it too. Without it all are on one node.
  virtual void set_nodes(std::span<const int> node_of_rank) = 0;

  // What was sent up to now; of tensor collectives that are under way perhaps a part.
  virtual WireCount wire() const = 0;
};

}  // namespace tandem

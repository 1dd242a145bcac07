// Collectives among the ranks of a job. Sums are pure: averaging is folded into the backward seed.
//
// Tensor collectives are asynchronous: they run in order on stream(), and every rank must call the
// same ones in the same order. Control messages are small, block the caller, and are counted apart
// from the gradient payload.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/core/stream.h"
#include "src/core/tensor.h"

namespace tandem {

// Bytes that this rank sent since the start.
struct WireCount {
  int64_t payload_bytes = 0;  // tensor collectives
  int64_t control_bytes = 0;
  int64_t collectives = 0;  // tensor collectives started
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Stream& stream() = 0;

  // Blocks the host until the event. Throws Error(kTemporary) that names the collective when one of
  // stream() failed or nothing has moved for the deadline. For waits behind which a collective may
  // stand; errors of the stream itself come out of event.synchronize() alike.
  virtual void wait(const Event& event) { event.synchronize(); }

  // Element-wise sum over ranks, in place; f32, f64 or bf16. All ranks get the same bits.
  virtual void all_reduce(const Tensor& inout) = 0;
  // in [size * n], out [n]: out becomes the sum over ranks of part rank() of in. `in` is scratch
  // afterwards.
  virtual void reduce_scatter(const Tensor& in, const Tensor& out) = 0;
  // in [n], out [size * n]: part r of out becomes rank r's in. `in` may be part rank() of out.
  virtual void all_gather(const Tensor& in, const Tensor& out) = 0;
  virtual void broadcast(const Tensor& inout, int root) = 0;

  // Control messages.
  virtual std::vector<double> sum(
      std::span<const double> values) = 0;  // added in rank order: same bits on all
  virtual std::string broadcast(std::string text, int root) = 0;
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;  // by rank
  virtual void barrier() = 0;
  virtual WireCount wire() const = 0;
};

}  // namespace tandem

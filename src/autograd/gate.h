// Called before and after the work of each block. A parameter store uses it to gather and free
// shards.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/stream.h"

namespace tandem {

struct Context;
class Variable;

using BlockId = int32_t;
enum class Pass : uint8_t { kForward, kBackward };

class Gate {
 public:
  virtual ~Gate() = default;
  // Afterwards, work on the compute stream can read the full values of the block's parameters.
  virtual void acquire(Context& context, BlockId block, Pass pass) = 0;
  // Called between acquire and release of the forward pass, when the block's work is enqueued; not
  // when a block is recomputed.
  virtual void see_output(BlockId /*block*/, const std::vector<Variable>& /*output*/) {}
  // The full values may be freed. After the backward pass the block's gradients are complete,
  // except for shared parameters.
  virtual void release(Context& context, BlockId block, Pass pass) = 0;
  // Makes later work on the compute stream wait for an exchange that layers have started.
  virtual void await_exchange(Stream& compute, const Event& done) { compute.wait(done); }
  // True if acquire communicates: then all ranks must run the same passes.
  virtual bool is_collective() const { return false; }
};

}  // namespace tandem

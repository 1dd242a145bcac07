// Called around the work of a block; the seam where distributed memory management enters.
#pragma once

#include <cstdint>

namespace tandem {

struct Context;

using BlockId = int32_t;
enum class Pass : uint8_t { kForward, kBackward };

class Gate {
 public:
  virtual ~Gate() = default;
  // Afterwards the full values of the block's parameters are readable on the compute stream.
  virtual void acquire(Context& context, BlockId block, Pass pass) = 0;
  // The full values may be dropped; after the backward pass the block's gradients are complete but
  // for shared parameters.
  virtual void release(Context& context, BlockId block, Pass pass) = 0;
  // True when acquire communicates: then all ranks must run the same passes.
  virtual bool is_collective() const { return false; }
};

}  // namespace tandem

// A gate that also looks at what blocks compute.
#pragma once

#include "src/autograd/block.h"

namespace tandem {

class WatchingGate : public Gate {
 public:
  // Called between acquire and release of the forward pass, when the block's work is enqueued; not
  // when a block is recomputed.
  virtual void see_output(BlockId block, const Flow& output) = 0;
};

}  // namespace tandem

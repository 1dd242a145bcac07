// A block is the unit of recomputation, of ZeRO-3 gathering and of gradient communication.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/autograd/context.h"
#include "src/autograd/gate.h"

namespace tandem {

// What one block passes to the next: a few tensors.
using Flow = std::vector<Variable>;
using BlockBody = std::function<Flow(Context&, Flow x)>;

// A parameter that several blocks use is listed only with the first of them.
struct Block : BlockParameters {
  BlockBody body;
  bool recomputes = true;  // with context.recompute; false: it keeps little
};

// Runs body(x) as block `id`: context.gate acquires the block's parameters before and releases them
// after. With context.recompute the tape keeps only x, and backward runs the body again (Chen et
// al. 2016, "Training deep nets with sublinear memory cost"). The bits are the same, because every
// op is deterministic and random numbers depend on the sample, not on the call. Blocks do not nest.
// Call backward with a context that has the same gate and the same `parked`.
Flow run_block(Context& context, BlockId id, const BlockBody& body, Flow x);

// Runs a model's blocks one after the other; a block's id is its position. The last block, the
// head, is never recomputed: backward starts with it, so freeing its activations would save
// nothing.
Flow run_blocks(Context& context, std::span<const Block> blocks, Flow x);

}  // namespace tandem

// A block is the unit of recomputation, of ZeRO-3 gathering and of gradient communication.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/autograd/context.h"
#include "src/autograd/gate.h"

namespace tandem {

// What a block hands on to the next: a few tensors.
using Flow = std::vector<Variable>;
using BlockBody = std::function<Flow(Context&, Flow x)>;

// A parameter that several blocks use is listed with the first of them.
struct Block : BlockParameters {
  BlockBody body;
};

// Runs body(x) as block `id`, between acquire and release of context.gate. With context.recompute
// the tape keeps only x: backward runs the body again (Chen et al. 2016, "Training deep nets with
// sublinear memory cost") and gives the same bits, because every op is deterministic and random
// numbers are named by sample. Blocks do not nest. Backward wants a context with the same gate.
Flow run_block(Context& context, BlockId id, const BlockBody& body, Flow x);

// Runs a model's blocks one after the other; a block's position is its id. The last block, the
// head, is never recomputed: backward begins with it, so what it keeps is needed at once.
Flow run_blocks(Context& context, std::span<const Block> blocks, Flow x);

}  // namespace tandem

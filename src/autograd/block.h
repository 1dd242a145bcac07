// A block is the unit of recomputation, of ZeRO-3 gathering and of gradient communication.
#pragma once

#include <functional>

#include "src/autograd/context.h"
#include "src/autograd/gate.h"

namespace tandem {

using BlockBody = std::function<Variable(Context&, const Variable& x)>;

// Runs body(x) as block `id`, between gate.acquire and gate.release. With `recompute` the tape
// keeps only x: backward runs the body again (Chen et al. 2016, "Training deep nets with sublinear
// memory cost") and gives the same bits, because every op is deterministic and random numbers are
// named by sample. Blocks do not nest. The gate must outlive the tape's backward pass.
Variable run_block(Context& context, Gate& gate, BlockId id, bool recompute, const Variable& x,
                   const BlockBody& body);

}  // namespace tandem

// Rows of activations that go between the ranks which hold different slices of a block. Between
// blocks each rank has some rows of the residual stream; a matrix that is cut by columns reads all
// rows, and one that is cut by rows gives a part of the sum of each (Korthikanti et al. 2022,
// "Reducing activation recomputation in large transformer models"). Either op is the other's
// gradient. The ranks are context.tensor; without them both ops return x.
//
// Dtypes: f32, bf16, fp16, and f64 on a CPU. Collective: all ranks make the same calls in the same
// order, and pass equal shapes.
#pragma once

#include "src/autograd/context.h"

namespace tandem {

// x [rows, ...] on each of N ranks; returns [N rows, ...]: those of rank 0, then of rank 1, ...
Variable gather_rows(Context& context, const Variable& x);

// x [N rows, ...]; returns [rows, ...]: the sum over ranks of the rows that gather_rows() takes
// from this rank. Sums are in f32, or f64 of f64, in rank order, and rounded once. Throws
// Error(kInternal) if the number of ranks does not divide that of rows.
Variable scatter_add_rows(Context& context, const Variable& x);

}  // namespace tandem

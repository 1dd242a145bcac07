// Rows of activations that go between the ranks which hold different slices of a block. Between
// blocks each rank has some rows of the residual stream; a matrix that is cut by columns reads all
// rows, and one that is cut by rows gives a part of the sum of each (Korthikanti et al. 2022,
// "Reducing activation recomputation in large transformer models"). Gathering rows and scattering
// their sums are each other's gradients. The ranks are context.tensor; without them nothing is
// exchanged.
//
// Dtypes: f32, bf16, fp16, and f64 on a CPU. Collective: all ranks make the same calls in the same
// order, and pass equal shapes.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// x [rows, ...] on each of N ranks; returns [N rows, ...]: those of rank 0, then of rank 1, ...
Variable gather_rows(Context& context, const Variable& x);

// x [N rows, ...]; returns [rows, ...]: the sum over ranks of the rows that gather_rows() takes
// from this rank, plus `bias`, if there is one, of the size of the last axis. Sums are in f32, or
// f64 of f64, in rank order, and rounded once. Throws Error(kInternal) if the number of ranks does
// not divide that of rows.
Variable scatter_add_rows(Context& context, Variable x, Parameter* bias = nullptr);

// Rows on their way, for an op that computes meanwhile. Its tensors may be freed after take().
class RowsInFlight {
 public:
  // Begins to gather x [rows, ...].
  static RowsInFlight gather(Context& context, const Tensor& x);
  // Begins to scatter x [N rows, ...].
  static RowsInFlight scatter(Context& context, const Tensor& x);
  // Later work on the compute stream sees the result. `bias`: as in scatter_add_rows().
  Tensor take(Context& context, const Parameter* bias = nullptr);

 private:
  void start(Context& context, void (Collectives::*send)(const Tensor& in, const Tensor& out));

  Tensor from_, to_;
  int64_t parts_ = 1;  // that must be added
  Event there_;
};

namespace kernels {

// to[i, j] = from[0, i, j] + from[1, i, j] + ... + bias[j], added in this order in f32 (f64 of
// f64), then rounded. from [parts, rows, columns], bias [columns] or null, to [rows, columns].
template <class T>
void add_row_parts(Cuda, int64_t parts, int64_t rows, int64_t columns, const T* from, const T* bias,
                   T* to);

}  // namespace kernels
}  // namespace tandem

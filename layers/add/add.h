// Residual addition.
#pragma once

#include "layers/module.h"

namespace tandem {

// x + branch, of one shape. The result takes the branch's memory when nobody else holds it, so hand
// the branch over with std::move.
Variable add(Context& context, const Variable& x, Variable branch);

// Puts `sum`, which is x + branch already, on the tape.
Variable record_sum(Context& context, Tensor sum, const Variable& x, const Variable& branch);

namespace kernels {

// y = a + b; y may be a or b.
template <class T>
void add(Cpu, int64_t n, const T* a, const T* b, T* y);
template <class T>
void add(Cuda, int64_t n, const T* a, const T* b, T* y);

}  // namespace kernels
}  // namespace tandem

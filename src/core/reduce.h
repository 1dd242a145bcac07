// Sums over flat arrays. The order of additions is fixed by the length alone, so the bits do not
// depend on the number of threads. Accumulation is in f64.
#pragma once

#include "src/core/dispatch.h"

namespace tandem {

template <class T>
double sum(Cpu, const T* x, int64_t n);  // sum of x[i]

template <class T>
double squared_norm(Cpu, const T* x, int64_t n);  // sum of x[i]^2

}  // namespace tandem

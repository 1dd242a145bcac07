// Sums over flat arrays, into the memory of the device. The order of additions is fixed by the
// length alone, so the bits depend neither on the number of threads nor on the GPU. Accumulation is
// in f64.
#pragma once

#include "src/device/dispatch.h"

namespace tandem {

// f64 numbers of scratch memory that a sum on a GPU takes; a CPU takes none.
inline constexpr int64_t kReduceScratch = 1024;

// *result = sum of x[i], plus what was there if `add`. f32, and f64 on the CPU.
template <class T>
void sum(Cpu, const T* x, int64_t n, double* result, double* scratch, bool add);
template <class T>
void sum(Cuda, const T* x, int64_t n, double* result, double* scratch, bool add);

// The same of x[i]^2.
template <class T>
void squared_norm(Cpu, const T* x, int64_t n, double* result, double* scratch, bool add);
template <class T>
void squared_norm(Cuda, const T* x, int64_t n, double* result, double* scratch, bool add);

}  // namespace tandem

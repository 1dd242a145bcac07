// Sums over flat arrays; the result is in device memory. The order of additions depends only on the
// length, so the bits depend neither on the number of threads nor on the GPU. Sums are accumulated
// in f64.
#pragma once

#include "src/device/dispatch.h"
#include "src/kernels/array_list.h"

namespace tandem {

// Scratch memory for a sum on a GPU, in f64 numbers. The CPU needs none.
inline constexpr int64_t kReduceScratch = 1024;

// *result = sum of x[i]. If `add`, the old *result is added. T is f32, or f64 on the CPU.
template <class T>
void sum(Cpu, const T* x, int64_t n, double* result, double* scratch, bool add);
template <class T>
void sum(Cuda, const T* x, int64_t n, double* result, double* scratch, bool add);

// The same for x[i]^2. T may also be bf16.
template <class T>
void squared_norm(Cpu, const T* x, int64_t n, double* result, double* scratch, bool add);
template <class T>
void squared_norm(Cuda, const T* x, int64_t n, double* result, double* scratch, bool add);

// *result = the sum of squares of all arrays together. The order of additions depends only on their
// lengths.
struct alignas(16) FlatArray {
  const float* data;
  int64_t elements;
};
void squared_norm(Cuda, const ArrayList<FlatArray>& arrays, double* result, double* scratch);

namespace kernels {

// Adds equal chunks of an array, such as those that a rank received from all ranks: to[i] = from[0,
// i] + from[1, i] + ..., added in f32 in this order, then rounded to To. from [parts, n]; to [n],
// apart from `from`. From and To: bf16 and bf16 or f32; f32 and f32.
template <class From, class To>
void sum_parts(Cpu, int64_t parts, int64_t n, const From* from, To* to);
template <class From, class To>
void sum_parts(Cuda, int64_t parts, int64_t n, const From* from, To* to);

}  // namespace kernels

}  // namespace tandem

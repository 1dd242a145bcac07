#include <algorithm>

#include "src/device/global.h"
#include "src/kernels/block.cuh"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kThreadElements = 16;  // minimum, before a second block is worth its cost

struct Value {
  __device__ double operator()(double x) const { return x; }
};

struct Square {
  __device__ double operator()(double x) const { return x * x; }
};

int64_t blocks_of(int64_t n) {
  return std::min(kReduceScratch,
                  (n + kThreads * kThreadElements - 1) / (kThreads * kThreadElements));
}

// partial[block] = the sum over the block's elements. Threads take packs in turn. Without 16-byte
// alignment (kAligned is false) a thread loads the same elements one by one.
template <bool kAligned, class T, class F>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(Global<const T> x, int64_t n, Global<double> partial, F term) {
  const int64_t step = int64_t{gridDim.x} * kThreads * kPack<T>;
  double total = 0;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPack<T>; i < n; i += step) {
    if (kAligned && i + kPack<T> <= n) {
      const Pack<T> pack = x.load16(i);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        total += term(pack[j]);
      }
    } else {
      const int count = static_cast<int>(n - i < kPack<T> ? n - i : kPack<T>);
      for (int j = 0; j < count; ++j) {
        total += term(x.load(i + j));
      }
    }
  }
  total = block_sum(total);
  if (threadIdx.x == 0) {
    partial.store(blockIdx.x, total);
  }
}

// *result = sum of partial[0, count). If `add`, the old *result is added.
__global__ void __launch_bounds__(kReduceScratch)
    reduce_partial_kernel(Global<const double> partial, int count, Global<double> result,
                          bool add) {
  const int thread = static_cast<int>(threadIdx.x);
  const double total = block_sum(thread < count ? partial.load(thread) : 0.0);
  if (thread == 0) {
    result.store(0, total + (add ? result.load(0) : 0));
  }
}

template <class T, class F>
void reduce(Cuda device, const T* x, int64_t n, double* result, double* scratch, bool add, F term) {
  const int64_t blocks = blocks_of(n);
  if (blocks > 0) {
    const auto grid = static_cast<unsigned>(blocks);
    if (aligned16(x)) {
      launch<reduce_kernel<true, T, F>>(device, grid, kThreads, 0, x, n, scratch, term);
    } else {
      launch<reduce_kernel<false, T, F>>(device, grid, kThreads, 0, x, n, scratch, term);
    }
  }
  launch<reduce_partial_kernel>(device, 1, kReduceScratch, 0, scratch, static_cast<int>(blocks),
                                result, add);
}

}  // namespace

template <class T>
void sum(Cuda device, const T* x, int64_t n, double* result, double* scratch, bool add) {
  reduce(device, x, n, result, scratch, add, Value{});
}

template <class T>
void squared_norm(Cuda device, const T* x, int64_t n, double* result, double* scratch, bool add) {
  reduce(device, x, n, result, scratch, add, Square{});
}

template void sum<float>(Cuda, const float*, int64_t, double*, double*, bool);
template void squared_norm<float>(Cuda, const float*, int64_t, double*, double*, bool);

}  // namespace tandem

#include <algorithm>

#include "src/device/global.h"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kBlockElements = kThreads * 16;  // before a second block is worth its cost

struct Value {
  __device__ double operator()(double x) const { return x; }
};

struct Square {
  __device__ double operator()(double x) const { return x * x; }
};

// The sum of a thread's share of x[first, last): packs in turn, from number `thread` of `threads`.
// Without 16-byte alignment a thread loads the same elements one by one.
template <class T, class F>
__device__ double sum_of_share(Global<const T> x, int64_t first, int64_t last, int64_t thread,
                               int64_t threads, bool aligned, F term) {
  double total = 0;
  for (int64_t i = first + thread * kPack<T>; i < last; i += threads * kPack<T>) {
    if (aligned && i + kPack<T> <= last) {
      const Pack<T> pack = x.load16(i);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        total += term(pack[j]);
      }
    } else {
      const int count = static_cast<int>(last - i < kPack<T> ? last - i : kPack<T>);
      for (int j = 0; j < count; ++j) {
        total += term(x.load(i + j));
      }
    }
  }
  return total;
}

// partial[block] = the sum over the block's threads.
__device__ void store_partial(Global<double> partial, double total) {
  total = block_sum(total);
  if (threadIdx.x == 0) {
    partial.store(blockIdx.x, total);
  }
}

template <bool kAligned, class T, class F>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(Global<const T> x, int64_t n, Global<double> partial, F term) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  store_partial(partial,
                sum_of_share(x, 0, n, thread, int64_t{gridDim.x} * kThreads, kAligned, term));
}

// Blocks take chunks in turn.
__global__ void __launch_bounds__(kThreads)
    squared_norm_kernel(ArrayList<FlatArray> list, Global<double> partial) {
  const Global<const FlatArray> arrays = list.arrays;
  const Global<const ArrayChunk> chunks = list.chunks;
  double total = 0;
  for (int64_t c = blockIdx.x; c < list.chunk_count; c += gridDim.x) {
    const ArrayChunk chunk = chunks.load(c);
    const FlatArray array = arrays.load(chunk.array);
    const int64_t first = int64_t{chunk.number} * kChunkElements;
    const int64_t end = first + kChunkElements;
    total += sum_of_share(Global<const float>(array.data), first,
                          end < array.elements ? end : array.elements, threadIdx.x, kThreads,
                          reinterpret_cast<uintptr_t>(array.data) % 16 == 0, Square{});
  }
  store_partial(partial, total);
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
  const int64_t blocks = std::min(kReduceScratch, (n + kBlockElements - 1) / kBlockElements);
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

void squared_norm(Cuda device, const ArrayList<FlatArray>& arrays, double* result,
                  double* scratch) {
  const int64_t blocks = std::min(kReduceScratch, arrays.chunk_count);
  if (blocks > 0) {
    launch<squared_norm_kernel>(device, static_cast<unsigned>(blocks), kThreads, 0, arrays,
                                scratch);
  }
  launch<reduce_partial_kernel>(device, 1, kReduceScratch, 0, scratch, static_cast<int>(blocks),
                                result, false);
}

template void sum<float>(Cuda, const float*, int64_t, double*, double*, bool);
template void squared_norm<float>(Cuda, const float*, int64_t, double*, double*, bool);
template void squared_norm<Bf16>(Cuda, const Bf16*, int64_t, double*, double*, bool);

namespace kernels {

namespace {

// A thread adds kCount neighbouring elements of all chunks.
template <int kCount, class From, class To>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(int64_t parts, int64_t n, Global<const From> from, Global<To> to) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (i >= n) {
    return;
  }
  float sums[kCount];
  load_pack(from, i, sums);
  for (int64_t part = 1; part < parts; ++part) {
    float values[kCount];
    load_pack(from, part * n + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      sums[j] += values[j];
    }
  }
  store_pack(to, i, sums);
}

}  // namespace

template <class From, class To>
void sum_parts(Cuda device, int64_t parts, int64_t n, const From* from, To* to) {
  if (n == 0) {
    return;
  }
  with_pack<From, To>(packs_fit(n, from, to), [&]<int kCount>() {
    launch<sum_parts_kernel<kCount, From, To>>(device, blocks_for(n, kThreads * kCount), kThreads,
                                               0, parts, n, from, to);
  });
}

template void sum_parts<Bf16>(Cuda, int64_t, int64_t, const Bf16*, float*);
template void sum_parts<Bf16>(Cuda, int64_t, int64_t, const Bf16*, Bf16*);
template void sum_parts<float>(Cuda, int64_t, int64_t, const float*, float*);

}  // namespace kernels

}  // namespace tandem

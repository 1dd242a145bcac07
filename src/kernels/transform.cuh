// How threads divide arrays and matrices. transform() is that of map.h on a GPU: if all pointers
// are aligned to 16 bytes, a thread takes as many neighbours as 16 bytes of the widest type hold;
// otherwise one element.
#pragma once

#include <algorithm>

#include "src/kernels/launch.cuh"
#include "src/kernels/pack.cuh"

namespace tandem {

namespace transform_detail {

inline constexpr int kThreads = 256;

template <int kCount, class To, class F, class... From>
__device__ void apply(int64_t i, Global<To> to, F f, Global<const From>... from) {
  const auto values = [&](const Elements<From, kCount>&... inputs) {
    Elements<Wide<To>, kCount> results;  // rounded where they are stored: in pairs
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      results.of[j] = f(Wide<From>(inputs.of[j])...);
    }
    return results;
  }(load_elements<kCount>(from, i)...);
  store_pack(to, i, values.of);
}

template <int kCount, class To, class F, class... From>
__global__ void __launch_bounds__(kThreads)
    transform_kernel(int64_t n, Global<To> to, F f, Global<const From>... from) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (i + kCount <= n) {
    apply<kCount, To, F, From...>(i, to, f, from...);
  } else {
    for (int64_t j = i; j < n; ++j) {
      apply<1, To, F, From...>(j, to, f, from...);
    }
  }
}

}  // namespace transform_detail

template <class To, class F, class... From>
void transform(Cuda device, int64_t n, To* to, F f, const From*... from) {
  using namespace transform_detail;
  if (n == 0) {
    return;
  }
  with_pack<To, From...>(aligned16(static_cast<const To*>(to), from...), [&]<int kCount>() {
    launch<transform_kernel<kCount, To, F, From...>>(device, blocks_for(n, kThreads * kCount),
                                                     kThreads, 0, n, to, f, from...);
  });
}

// --- matrices ---
//
// How a kernel divides a matrix [rows, width] among threads. A warp takes neighbouring columns of
// one row, kWidth columns per thread, so that no thread has to divide by the width.

inline constexpr int kMatrixColumns = 32;  // threads along a row in a block
inline constexpr int kMatrixRows = 8;      // rows in a block
inline constexpr int kMatrixThreads = kMatrixColumns * kMatrixRows;

// rows and width are at least 1. The grid has `layers` layers of blocks along z, at most 65535.
inline dim3 matrix_grid(int64_t rows, int64_t width, int columns_per_thread, int64_t layers = 1) {
  constexpr int64_t kMost = 65535;
  const int64_t columns = (width + columns_per_thread - 1) / columns_per_thread;
  return {blocks_for(rows, kMatrixRows),
          static_cast<unsigned>(std::min<int64_t>(kMost, blocks_for(columns, kMatrixColumns))),
          static_cast<unsigned>(std::min(kMost, layers))};
}

inline dim3 matrix_block() { return {kMatrixColumns, kMatrixRows}; }

// Calls f(row, column) for each group of kWidth columns of this thread. The width must be a
// multiple of kWidth.
template <int kWidth, class F>
__device__ void for_matrix(int64_t rows, int64_t width, F f) {
  const int64_t row = int64_t{blockIdx.x} * kMatrixRows + threadIdx.y;
  if (row >= rows) {
    return;
  }
  const int64_t first = (int64_t{blockIdx.y} * kMatrixColumns + threadIdx.x) * kWidth;
#pragma unroll 1  // one iteration, except for very wide matrices
  for (int64_t j = first; j < width; j += int64_t{gridDim.y} * kMatrixColumns * kWidth) {
    f(row, j);
  }
}

}  // namespace tandem

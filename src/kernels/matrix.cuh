// How a kernel divides a matrix [rows, width] among threads. A warp takes neighbouring columns of
// one row, kWidth columns per thread, so that no thread has to divide by the width.
#pragma once

#include <algorithm>

#include "src/kernels/launch.cuh"

namespace tandem {

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

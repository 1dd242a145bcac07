// How a kernel divides a matrix [rows, width] among threads: a warp takes neighbouring columns of
// one row, kWidth of them a thread, so that no thread divides by the width.
#pragma once

#include <algorithm>

#include "src/kernels/launch.cuh"

namespace tandem {

inline constexpr int kMatrixColumns = 32;  // threads of a block along a row
inline constexpr int kMatrixRows = 8;      // rows of a block
inline constexpr int kMatrixThreads = kMatrixColumns * kMatrixRows;

// rows and width are at least 1; `layers` of blocks lie behind each other (blockIdx.z).
inline dim3 matrix_grid(int64_t rows, int64_t width, int columns_per_thread, int64_t layers = 1) {
  constexpr int64_t kMost = 65535;
  const int64_t columns = (width + columns_per_thread - 1) / columns_per_thread;
  return {blocks_for(rows, kMatrixRows),
          static_cast<unsigned>(std::min<int64_t>(kMost, blocks_for(columns, kMatrixColumns))),
          static_cast<unsigned>(std::min(kMost, layers))};
}

inline dim3 matrix_block() { return {kMatrixColumns, kMatrixRows}; }

// f(row, column) for each kWidth columns of this thread; kWidth divides the width.
template <int kWidth, class F>
__device__ void for_matrix(int64_t rows, int64_t width, F f) {
  const int64_t row = int64_t{blockIdx.x} * kMatrixRows + threadIdx.y;
  if (row >= rows) {
    return;
  }
  const int64_t first = (int64_t{blockIdx.y} * kMatrixColumns + threadIdx.x) * kWidth;
#pragma unroll 1  // one turn, but for very wide matrices
  for (int64_t j = first; j < width; j += int64_t{gridDim.y} * kMatrixColumns * kWidth) {
    f(row, j);
  }
}

}  // namespace tandem

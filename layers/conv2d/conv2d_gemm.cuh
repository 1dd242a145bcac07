// The matrix product behind all three directions of convolution on a GPU. It is an implicit GEMM:
// the operands are never unfolded in memory. Internal to conv2d.
//
// A block of kThreads computes kTileRows x kTileColumns sums over an index k, slice by slice. While
// the block multiplies the current slice, which is in shared memory in f32, each thread loads a few
// runs of neighbouring elements of the next slice into registers.
#pragma once

#include <type_traits>

#include "layers/conv2d/conv2d_shares.h"
#include "src/device/global.h"
#include "src/kernels/launch.cuh"

namespace tandem::conv2d_detail {

inline constexpr int kThreads = 256;
inline constexpr int kThreadRows = 4, kThreadColumns = 8;  // sums in one thread
inline constexpr int kThreadsAcross = kTileColumns / kThreadColumns;

// A run has kPack<E> elements. E is T if a run is one 16-byte access, and f32 if its elements are
// loaded one by one. A slice is 4 runs long.
template <class T, bool kVector>
using RunElement = std::conditional_t<kVector, T, float>;
template <class E>
inline constexpr int kSlice = 4 * kPack<E>;

// --- tiles ---

// One slice of both operands. A thread's two quads of columns are half a tile apart, so that
// neighbouring threads read neighbouring quads without bank conflicts. The extra quad in each line
// spreads writes along k over the banks.
template <class E>
struct Tile {
  Pack<float> rows[kSlice<E>][kTileRows / 4 + 1];
  Pack<float> columns[kSlice<E>][kTileColumns / 4 + 1];
};

struct RowQuad {
  __device__ static int place(int quad) { return quad; }
};
struct ColumnQuad {
  __device__ static int place(int quad) { return quad % 2 * kThreadsAcross + quad / 2; }
};

// Where a thread's first run starts in a slice. A line is a row or a column of the product.
struct Run {
  int k, line;
};

// For runs of neighbours in k: 4 threads load the slice of one line.
inline constexpr int kLinesAtOnce = kThreads / 4;
template <class E>
__device__ Run run_along_k() {
  const int thread = static_cast<int>(threadIdx.x);
  return {thread % 4 * kPack<E>, thread / 4};
}

// For runs of neighbours among kLines lines.
template <class E, int kLines>
__device__ Run run_along_lines() {
  constexpr int kRuns = kLines / kPack<E>;
  const int thread = static_cast<int>(threadIdx.x);
  return {thread / kRuns, thread % kRuns * kPack<E>};
}

template <class Quad, class E, int kQuads>
__device__ void put_along_k(Pack<float> (&tile)[kSlice<E>][kQuads], Run at, Pack<E> run) {
#pragma unroll
  for (int j = 0; j < kPack<E>; ++j) {
    tile[at.k + j][Quad::place(at.line / 4)][at.line % 4] = float(run[j]);
  }
}

template <class Quad, class E, int kQuads>
__device__ void put_along_lines(Pack<float> (&tile)[kSlice<E>][kQuads], Run at, Pack<E> run) {
#pragma unroll
  for (int j = 0; j < kPack<E>; j += 4) {
    tile[at.k][Quad::place((at.line + j) / 4)] = {float(run[j]), float(run[j + 1]),
                                                  float(run[j + 2]), float(run[j + 3])};
  }
}

// Each call of offset() returns where the run's next element is; a negative offset means zero. With
// kVector, either all elements are zeros, or they are contiguous and aligned to 16 bytes.
template <bool kVector, class T, class Offset>
__device__ Pack<RunElement<T, kVector>> load_run(Global<const T> from, Offset offset) {
  if constexpr (kVector) {
    const int64_t i = offset();
    return i >= 0 ? from.load16(i) : Pack<T>{};
  } else {
    Pack<float> run;
#pragma unroll
    for (int j = 0; j < kPack<float>; ++j) {
      const int64_t i = offset();
      run[j] = i >= 0 ? float(from.load(i)) : 0;
    }
    return run;
  }
}

// --- the product ---

// The sums of one thread: rows [row(), row() + kThreadRows) and columns [column(), column() +
// kThreadColumns) of the block's tile.
struct Sums {
  float of[kThreadRows][kThreadColumns] = {};

  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / kThreadsAcross * kThreadRows;
  }
  __device__ static int column() {
    return static_cast<int>(threadIdx.x) % kThreadsAcross * kThreadColumns;
  }
};

template <class E>
__device__ void multiply(const Tile<E>& tile, Sums& sums) {
  const int quad = Sums::column() / 4;
#pragma unroll
  for (int k = 0; k < kSlice<E>; ++k) {
    const Pack<float> row = tile.rows[k][Sums::row() / 4];
    const Pack<float> column[2] = {tile.columns[k][ColumnQuad::place(quad)],
                                   tile.columns[k][ColumnQuad::place(quad + 1)]};
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) {
        sums.of[i][j] += row[i] * column[j / 4][j % 4];
      }
    }
  }
}

// Bytes of dynamic shared memory for accumulate().
template <class E>
inline constexpr size_t kTileBytes = 2 * sizeof(Tile<E>);

// Adds `slices` slices of the product to `sums`. operands.gather() loads the thread's runs of the
// next slice; operands.put(tile) writes them to shared memory.
template <class E, class Operands>
__device__ void accumulate(int slices, Operands& operands, Sums& sums) {
  Tile<E>* tiles = dynamic_shared<Tile<E>>();
  if (slices == 0) {
    return;
  }
  operands.gather();
  operands.put(tiles[0]);
  __syncthreads();
  for (int slice = 0; slice < slices; ++slice) {
    const bool more = slice + 1 < slices;
    if (more) {
      operands.gather();
    }
    multiply<E>(tiles[slice % 2], sums);
    if (more) {
      operands.put(tiles[(slice + 1) % 2]);
    }
    __syncthreads();  // the next slice is complete, and the current one may be overwritten
  }
}

}  // namespace tandem::conv2d_detail

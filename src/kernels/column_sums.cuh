// How a GPU sums over the rows of a [rows, columns] matrix (column_sums.h). First each block sums a
// chunk of rows for a tile of columns. Then the sums of the chunks are added.
#pragma once

#include "src/kernels/block.cuh"
#include "src/kernels/column_sums.h"
#include "src/kernels/pack.cuh"

namespace tandem {

// The first stage. Within a chunk, a thread sums `pack` neighbouring columns of every blockDim.y-th
// row. Neighbouring threads (in x) have neighbouring packs.
struct ColumnGrid : ColumnChunks {
  static constexpr int kThreads = 256;

  int64_t rows, columns;

  ColumnGrid(int64_t all_rows, int64_t all_columns)
      : ColumnChunks(all_rows, all_columns), rows(all_rows), columns(all_columns) {}

  dim3 block(int pack) const {
    unsigned across = 1;
    while (across < kWarp && across * pack < columns) {
      across *= 2;
    }
    return {across, kThreads / across};
  }
  dim3 grid(int pack) const {
    return {blocks_for(columns, int64_t{block(pack).x} * pack), static_cast<unsigned>(chunks)};
  }
  TANDEM_HOST_DEVICE int64_t rows_of(int64_t chunk) const {
    const int64_t left = rows - chunk * chunk_rows;
    return left < chunk_rows ? left : chunk_rows;
  }
};

// The rows of one thread of a ColumnGrid: first, first + step, ..., below last.
struct ColumnWalk {
  int64_t column;  // the thread's first column; none if not below grid.columns
  int64_t first, last, step;

  __device__ ColumnWalk(const ColumnGrid& grid, int pack)
      : column((int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * pack),
        first(blockIdx.y * grid.chunk_rows + threadIdx.y),
        last(blockIdx.y * grid.chunk_rows + grid.rows_of(blockIdx.y)),
        step(blockDim.y) {}
};

// Combines the values of the threads that have the same threadIdx.x. The threads with threadIdx.y
// == 0 get the result, and every thread must call this. combine(mine, other) leaves its result in
// `mine`; `other` belongs to later rows. One barrier a round is enough, because each round uses
// other places in shared memory.
template <int kCount, class Combine>
__device__ void combine_rows(float (&values)[kCount], Combine combine) {
  struct Values {
    float of[kCount][ColumnGrid::kThreads];
  };
  Values& exchange = shared<Values>();
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y >= half && threadIdx.y < 2 * half) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        exchange.of[i][thread] = values[i];
      }
    }
    __syncthreads();
    if (threadIdx.y < half) {
      float other[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        other[i] = exchange.of[i][thread + static_cast<int>(half * blockDim.x)];
      }
      combine(values, other);
    }
  }
}

struct AddAll {
  template <int kCount>
  __device__ void operator()(float (&mine)[kCount], const float (&other)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      mine[i] += other[i];
    }
  }
};

// Adds the sums of a block's threads, in `total`, and writes them to partial [chunks, columns].
// Every thread must call this.
template <int kColumns>
__device__ void store_chunk_sums(const ColumnGrid& grid, const ColumnWalk& walk,
                                 float (&total)[kColumns], Global<float> partial) {
  combine_rows(total, AddAll{});
  if (walk.column < grid.columns && threadIdx.y == 0) {
    store_pack(partial, blockIdx.y * grid.columns + walk.column, total);
  }
}

// The second stage: the sum of term(i) for i in [0, count), in f64. A block has kTotalThreads
// threads and 32 columns, one for each lane. Every thread must call this, and all threads of a
// column get its sum.
inline constexpr int kTotalThreads = kWarp * kWarp;

struct ColumnPartials {
  double of[kWarp][kWarp];
};

template <class Term>
__device__ double column_total(int64_t count, Term term) {
  ColumnPartials& partial = shared<ColumnPartials>();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  double total = 0;
  for (int64_t i = warp; i < count; i += kWarp) {
    total += term(i);
  }
  partial.of[warp][lane] = total;
  __syncthreads();
  total = 0;
  for (int w = 0; w < kWarp; ++w) {
    total += partial.of[w][lane];
  }
  __syncthreads();  // `partial` may be used again
  return total;
}

}  // namespace tandem

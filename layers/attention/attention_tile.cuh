// What the GPU attention kernels have in common: tiles of rows in shared memory, and the two
// products with them. Internal to attention.
//
// A block of kThreads owns a tile of rows (queries, or keys and values). It streams the other rows
// past this tile, kStreamed at a time. Their scores are never in global memory: kAcross
// neighbouring threads share an owned row. Each holds every kAcross-th element of the row's scores,
// and every kAcross-th group of four of its sums. In shared memory everything is f32 and padded
// with zeros, so the products need not handle other types or sizes.
#pragma once

#include "layers/attention/attention_sizes.cuh"
#include "src/device/global.h"
#include "src/kernels/block.cuh"

namespace tandem::attention_tile {

using namespace attention_sizes;

inline constexpr int kThreads = 128;
inline constexpr int kAcross = 8;  // threads that share a row; they are in one warp
inline constexpr int kDown = kThreads / kAcross;
inline constexpr int kStreamed = 32;
inline constexpr int kScores = kStreamed / kAcross;  // scores of a row in one thread
template <int kWidth>
inline constexpr int kSums = kWidth / kAcross;  // sums of a row in one thread
inline constexpr int kMaxWidth = 128;

__device__ inline int across() { return static_cast<int>(threadIdx.x) % kAcross; }
__device__ inline int down() { return static_cast<int>(threadIdx.x) / kAcross; }
// The row or column of the tile of scores that the thread's i-th or j-th register belongs to.
__device__ inline int owned_row(int i) { return down() + i * kDown; }
__device__ inline int streamed_row(int j) { return across() + j * kAcross; }

// The sum over the threads of a row. All lanes must call this.
__device__ inline float row_sum(float value) {
#pragma unroll
  for (int distance = kAcross / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

__device__ inline float row_max(float value) {
#pragma unroll
  for (int distance = kAcross / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// --- rows in global memory ---

// Rows of one head.
template <class T>
struct Rows {
  Global<T> data;
  int64_t step;   // elements from one row to the next
  int64_t count;  // number of rows; rows after them load as zeros and are not stored
  int width;
  bool vector;  // rows start at multiples of 16 bytes, and width is a multiple of kPack<T>
};

template <class T>
__device__ Pack<T> load_run(const Rows<const T>& from, int64_t row, int column) {
  Pack<T> run{};
  if (row >= from.count || column >= from.width) {
    return run;
  }
  const int64_t at = row * from.step + column;
  if (from.vector) {
    return from.data.load16(at);
  }
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    if (column + j < from.width) {
      run[j] = from.data.load(at + j);
    }
  }
  return run;
}

// to = beta * to + run
template <class T>
__device__ void store_run(const Rows<T>& to, int64_t row, int column, const float (&run)[kPack<T>],
                          float beta) {
  if (row >= to.count || column >= to.width) {
    return;
  }
  Pack<T> old{};
  if (beta != 0) {
    old = load_run(Rows<const T>{to.data, to.step, to.count, to.width, to.vector}, row, column);
  }
  Pack<T> sum;
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    sum[j] = T(beta != 0 ? beta * float(old[j]) + run[j] : run[j]);
  }
  const int64_t at = row * to.step + column;
  if (to.vector) {
    to.data.store16(at, sum);
    return;
  }
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) {
    if (column + j < to.width) {
      to.data.store(at + j, sum[j]);
    }
  }
}

// --- tiles in shared memory ---

// Rows as groups of four elements. One extra group makes the row length odd, so that a quarter of a
// warp can read different rows without bank conflicts.
template <int kWidth, int kRows>
struct Tile {
  Pack<float> rows[kRows][kWidth / 4 + 1];
};

template <class T, int kWidth, int kRows>
__device__ void load_tile(const Rows<const T>& from, int64_t first, Tile<kWidth, kRows>& tile) {
  constexpr int kRuns = kWidth / kPack<T>;
  static_assert(kRows * kRuns % kThreads == 0);
#pragma unroll 4
  for (int i = 0; i < kRows * kRuns / kThreads; ++i) {
    const int run = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = run / kRuns, column = run % kRuns * kPack<T>;
    const Pack<T> values = load_run(from, first + row, column);
#pragma unroll
    for (int j = 0; j < kPack<T>; j += 4) {
      tile.rows[row][(column + j) / 4] = {float(values[j]), float(values[j + 1]),
                                          float(values[j + 2]), float(values[j + 3])};
    }
  }
}

// to = beta * to + sums * factor (one factor per row). The sums pass through `tile`: the thread's
// warp must not need its owned rows in `tile` any more. All threads must call this.
template <class T, int kWidth, int kRows, int kEach>
__device__ void store_sums(const float (&sums)[kEach][kSums<kWidth>], const float (&factor)[kEach],
                           Tile<kWidth, kRows>& tile, const Rows<T>& to, int64_t first,
                           float beta) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int c = 0; c < kSums<kWidth>; c += 4) {
      tile.rows[owned_row(i)][across() + c / 4 * kAcross] = {
          sums[i][c] * factor[i], sums[i][c + 1] * factor[i], sums[i][c + 2] * factor[i],
          sums[i][c + 3] * factor[i]};
    }
  }
  __syncthreads();
  constexpr int kRuns = kWidth / kPack<T>;
#pragma unroll 2
  for (int i = 0; i < kRows * kRuns / kThreads; ++i) {
    const int run = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = run / kRuns, column = run % kRuns * kPack<T>;
    float values[kPack<T>];
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      values[j] = tile.rows[row][(column + j) / 4][j % 4];
    }
    store_run(to, first + row, column, values, beta);
  }
}

// --- products ---

// scores[i][j] = <owned row, streamed row>
template <int kWidth, int kOwned, int kEach>
__device__ void multiply(const Tile<kWidth, kOwned>& owned, const Tile<kWidth, kStreamed>& streamed,
                         float (&scores)[kEach][kScores]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      scores[i][j] = 0;
    }
  }
#pragma unroll 2
  for (int d = 0; d < kWidth / 4; ++d) {
    Pack<float> a[kEach], b[kScores];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      a[i] = owned.rows[owned_row(i)][d];
    }
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      b[j] = streamed.rows[streamed_row(j)][d];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kScores; ++j) {
          scores[i][j] += a[i][e] * b[j][e];
        }
      }
    }
  }
}

// sums[i] += sum over streamed rows s of weights[i][s] * streamed row s. The weights pass through
// `tile`. Each row of `tile` is used by one warp only, so the block needs no barrier, and the tile
// can be used again at once.
template <int kWidth, int kOwned, int kEach>
__device__ void add_weighted(const float (&weights)[kEach][kScores], Tile<kStreamed, kOwned>& tile,
                             const Tile<kWidth, kStreamed>& streamed,
                             float (&sums)[kEach][kSums<kWidth>]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      tile.rows[owned_row(i)][streamed_row(j) / 4][streamed_row(j) % 4] = weights[i][j];
    }
  }
  __syncwarp();
#pragma unroll 1
  for (int s = 0; s < kStreamed; s += 4) {
    Pack<float> weight[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      weight[i] = tile.rows[owned_row(i)][s / 4];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int c = 0; c < kSums<kWidth>; c += 4) {
        const Pack<float> values = streamed.rows[s + e][across() + c / 4 * kAcross];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            sums[i][c + k] += weight[i][e] * values[k];
          }
        }
      }
    }
  }
  __syncwarp();
}

// --- launching ---

// Calls f.template operator()<kWidth>() with the smallest supported kWidth >= width. Throws
// Error(kConfig) for heads wider than kMaxWidth.
template <class F>
void with_width(int64_t width, F f) {
  if (width <= 32) {
    f.template operator()<32>();
  } else if (width <= 64) {
    f.template operator()<64>();
  } else if (width <= 96) {
    f.template operator()<96>();
  } else if (width <= kMaxWidth) {
    f.template operator()<kMaxWidth>();
  } else {
    fail(ExitCode::kConfig, str("attention on cuda: heads of width ", width, "; the largest is ",
                                kMaxWidth, ": use more heads"));
  }
}

}  // namespace tandem::attention_tile

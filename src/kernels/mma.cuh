// Products of tiles in shared memory on tensor cores. A warp multiplies 16 x 16 elements of A by
// 16 x 8 of B with one instruction (ptx::mma), in bf16 or fp16, and sums in f32.
//
// What a lane holds of a tile is a fragment. Lane l has the pairs of neighbours in rows l / 4 and
// l / 4 + 8, at columns 2 (l % 4) and 8 further on. So the fragments of two neighbouring 16 x 8
// sums are, rounded, the fragment of a 16 x 16 A.
#pragma once

#include <bit>

#include "src/device/ptx.cuh"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::mma {

// A tile in shared memory. Rows are longer by 16 bytes than their elements. So the same 16 bytes of
// eight rows that follow each other are in different banks, which ldmatrix needs.
template <class T, int kRows, int kColumns>
struct Tile {
  static_assert(kIs16Bit<T> && kRows % 8 == 0 && kColumns % 32 == 0);
  static constexpr int kStride = kColumns + 8;
  alignas(16) T elements[kRows * kStride];

  __device__ Shared<T> at(int row, int column) {
    return Shared<T>(elements + row * kStride + column);
  }
};

// Sums of a warp: 16 kM x 8 kN, of which a lane holds sums[m][n][i]. The row and column of sum i of
// a 16 x 8 fragment, relative to its first:
template <int kM, int kN>
using Sums = float[kM][kN][4];
__device__ inline int row_of(int i) {
  return static_cast<int>(threadIdx.x) % kWarp / 4 + i / 2 * 8;
}
__device__ inline int column_of(int i) { return static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }

// The fragment of the 16 x 16 elements of A that begin at `row` and `column`.
template <class T, int kRows, int kColumns>
__device__ void load_a(Tile<T, kRows, kColumns>& from, int row, int column, uint32_t (&a)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ptx::ldmatrix(a, from.at(row + lane % 16, column + lane / 16 * 8));
}

// The fragments of two neighbouring 16 x 8 elements of B. In the tile, B is transposed: its columns
// are rows, which begin at `row`; its 16 rows are columns, which begin at `column`.
template <class T, int kRows, int kColumns>
__device__ void load_b_transposed(Tile<T, kRows, kColumns>& from, int row, int column,
                                  uint32_t (&b)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ptx::ldmatrix(b, from.at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
}

// The same where B lies in the tile as it is: 16 rows from `row`, 16 columns from `column`.
template <class T, int kRows, int kColumns>
__device__ void load_b(Tile<T, kRows, kColumns>& from, int row, int column, uint32_t (&b)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ptx::ldmatrix_transposed(b, from.at(row + lane % 16, column + lane / 16 * 8));
}

// The A of products: 16 kM rows of a tile, which begin at `row`. If kHeld, hold() reads their
// fragments once, into registers; else each product reads them.
template <bool kHeld, int kM, class T, int kRows, int kColumns>
struct RowsOfA {
  static_assert(kM * 16 <= kRows);
  Tile<T, kRows, kColumns>& tile;
  int row;
  uint32_t fragments[kHeld ? kColumns / 16 : 1][kM][4];

  __device__ auto& at(int column) { return fragments[kHeld ? column / 16 : 0]; }
  __device__ void load(int column) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      load_a(tile, row + m * 16, column, at(column)[m]);
    }
  }
  __device__ void hold() {
#pragma unroll
    for (int column = 0; column < (kHeld ? kColumns : 0); column += 16) {
      load(column);
    }
  }
};

template <bool kHeld, int kM, class T, int kRows, int kColumns>
__device__ RowsOfA<kHeld, kM, T, kRows, kColumns> rows_of_a(Tile<T, kRows, kColumns>& tile,
                                                            int row) {
  return {tile, row, {}};
}

// sums = A B^T, with B the first 8 kN rows of `b`.
template <bool kHeld, class T, int kM, int kN, int kRowsA, int kRowsB, int kDepth>
__device__ void multiply_transposed(RowsOfA<kHeld, kM, T, kRowsA, kDepth>& a,
                                    Tile<T, kRowsB, kDepth>& b, Sums<kM, kN>& sums) {
  static_assert(kN % 2 == 0 && kN * 8 <= kRowsB);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    if constexpr (!kHeld) {
      a.load(k);
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t of_b[4];
      load_b_transposed(b, n * 8, k, of_b);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        ptx::mma<T>(sums[m][n], a.at(k)[m], of_b[0], of_b[1]);
        ptx::mma<T>(sums[m][n + 1], a.at(k)[m], of_b[2], of_b[3]);
      }
    }
  }
}

// 16 kM x 8 kN elements of type T in pairs, with the layout of Sums: rounded sums, which can be the
// A of a next product.
template <int kM, int kN>
using Pairs = uint32_t[kM][kN][2];

template <class T, int kM, int kN>
__device__ void round(const Sums<kM, kN>& sums, Pairs<kM, kN>& rounded) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      rounded[m][n][0] = rounded_pair<T>(sums[m][n][0], sums[m][n][1]);
      rounded[m][n][1] = rounded_pair<T>(sums[m][n][2], sums[m][n][3]);
    }
  }
}

// sums += A B, with A 16 kM x 8 kK, and B the first 8 kK rows of `b`.
template <class T, int kM, int kK, int kN, int kRows>
__device__ void add_product(const Pairs<kM, kK>& a, Tile<T, kRows, kN * 8>& b, Sums<kM, kN>& sums) {
  static_assert(kK % 2 == 0 && kN % 2 == 0 && kK * 8 <= kRows);
#pragma unroll
  for (int k = 0; k < kK; k += 2) {
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t of_b[4];
      load_b(b, k * 8, n * 8, of_b);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const uint32_t of_a[4] = {a[m][k][0], a[m][k][1], a[m][k + 1][0], a[m][k + 1][1]};
        ptx::mma<T>(sums[m][n], of_a, of_b[0], of_b[1]);
        ptx::mma<T>(sums[m][n + 1], of_a, of_b[2], of_b[3]);
      }
    }
  }
}

// --- tiles and global memory ---

// Rows in global memory that start at multiples of 16 bytes.
template <class T>
struct Rows {
  Global<T> data;
  int64_t step;  // elements from one row to the next
  int count;     // rows from there on load as zeros and are not stored
};

// The first row of a pair of rows that are four apart: 0, 1, 2, 3, 8, 9, ...
constexpr int row_of_pair(int pair) { return pair / 4 * 8 + pair % 4; }

// Calls f(row, column) for all 16 bytes of a tile, divided among kThreads threads, of which this is
// number `thread`. Eight neighbouring threads have 64 bytes each of a pair of rows, so that they
// use all banks.
template <int kThreads, int kRows, int kColumns, class F>
__device__ void for_each_chunk(int thread, F f) {
  constexpr int kEights = kColumns / 32, kPairs = std::bit_floor(unsigned{kThreads / 8 / kEights});
  const int eight = thread / 8;
  if (eight < kPairs * kEights) {
    const int row = row_of_pair(eight / kEights) + thread % 8 / 4 * 4;
    const int column = eight % kEights * 32 + thread % 4 * 8;
#pragma unroll
    for (int pair = 0; pair < kRows / 2; pair += kPairs) {
      f(row + row_of_pair(pair), column);
    }
  }
}

// Begins to copy rows [first, first + kRows) to the tile. All kThreads threads of the block must
// call this.
template <int kThreads, class T, int kRows, int kColumns>
__device__ void load_async(const Rows<const T>& from, int first, Tile<T, kRows, kColumns>& tile) {
  for_each_chunk<kThreads, kRows, kColumns>(
      static_cast<int>(threadIdx.x), [&](int row, int column) {
        ptx::copy_async<16>(tile.at(row, column), from.data, (first + row) * from.step + column,
                            first + row < from.count);
      });
}

// to = beta * to + sums * factor[m][row], for the 16 kM rows of this warp, which begin at `first`
// in global memory and at `row` of `tile`. The sums pass through these rows of the tile, which no
// other warp may use meanwhile.
template <class T, int kM, int kN, int kRows>
__device__ void store_sums(const Sums<kM, kN>& sums, const float (&factor)[kM][2], float beta,
                           Tile<T, kRows, kN * 8>& tile, int row, const Rows<T>& to, int first) {
  const auto scaled = [&](int m, int n, int i) {
    const float product = sums[m][n][i] * factor[m][i / 2];
    const int at = first + m * 16 + row_of(i);
    return beta == 0 || at >= to.count
               ? product
               : product + beta * float(to.data.load(at * to.step + n * 8 + column_of(i)));
  };
  __syncwarp();  // all lanes have read these rows
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        tile.at(row + m * 16 + row_of(i), n * 8 + column_of(i))
            .template store_as<uint32_t>(0, rounded_pair<T>(scaled(m, n, i), scaled(m, n, i + 1)));
      }
    }
  }
  __syncwarp();
  for_each_chunk<kWarp, kM * 16, kN * 8>(
      static_cast<int>(threadIdx.x) % kWarp, [&](int r, int column) {
        if (first + r < to.count) {
          to.data.store16((first + r) * to.step + column,
                          tile.at(row + r, column).template load_as<Pack<T>>(0));
        }
      });
}

}  // namespace tandem::mma

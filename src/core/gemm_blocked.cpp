// GEMM on the calling thread, after Goto and van de Geijn 2008 ("Anatomy of high-performance matrix
// multiplication"): A and B are copied block by block into panels that lie in cache in the order of
// use, and tiles of C stay in registers while the sum over k runs.
//
// Each element of C is the sum over blocks of k of sums in the order of k, whatever m and n are and
// wherever the element lies: results do not depend on how C is cut over threads.
#include <algorithm>
#include <array>
#include <memory>

#include "src/core/gemm.h"
#include "src/core/vector.h"

namespace tandem {

namespace {

// A tile of C is kTileRows x 2 vectors; two registers hold the row of B and the others broadcasts.
constexpr int kTileVectors = 2;
constexpr int kTileRows = (kVectorRegisters - 4) / kTileVectors;
template <class T>
constexpr int64_t kTileColumns = kTileVectors* kLanes<T>;

// Block sizes, in rows, columns and bytes of k: a panel of A in the first-level cache, a block of A
// and of B in the second.
constexpr int64_t kBlockRows = 16 * kTileRows;
constexpr int64_t kBlockColumns = 768;
constexpr int64_t kBlockDepthBytes = 2048;

// Where a tile is written: c = beta * c + alpha * tile.
template <class T>
struct TileTarget {
  T* c;
  int64_t ldc;
  T alpha;
  T beta;
  int64_t columns;  // wanted of the tile
};

template <class T, int kRows, int kVectors>
void write_part(const Vector<T> (&sum)[kRows][kVectors], const TileTarget<T>& target) {
  T tile[kRows][kVectors * kLanes<T>];
  std::memcpy(tile, sum, sizeof tile);
  for (int i = 0; i < kRows; ++i) {
    T* c = target.c + i * target.ldc;
    for (int64_t j = 0; j < target.columns; ++j) {
      c[j] = target.alpha * tile[i][j] + (target.beta == T(0) ? T(0) : target.beta * c[j]);
    }
  }
}

template <class T, int kRows, int kVectors>
void write_tile(const Vector<T> (&sum)[kRows][kVectors], const TileTarget<T>& target) {
  if (target.columns < kVectors * kLanes<T>) {
    write_part<T, kRows, kVectors>(sum, target);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      T* c = target.c + i * target.ldc + v * kLanes<T>;
      const Vector<T> scaled = target.alpha * sum[i][v];
      store<T>(c, target.beta == T(0) ? scaled : scaled + target.beta * load(c));
    }
  }
}

// a: [depth, kTileRows], b: [depth, kTileColumns].
template <class T, int kRows, int kVectors>
void multiply_tile(const T* a, const T* b, int64_t depth, const TileTarget<T>& target) {
  Vector<T> sum[kRows][kVectors] = {};
  for (int64_t p = 0; p < depth; ++p, a += kTileRows, b += kTileColumns<T>) {
    Vector<T> row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      row[v] = load(b + v * kLanes<T>);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] += a[i] * row[v];
      }
    }
  }
  write_tile<T, kRows, kVectors>(sum, target);
}

template <class T>
using TileKernel = void (*)(const T*, const T*, int64_t, const TileTarget<T>&);

template <class T, int kVectors, size_t... kIndex>
constexpr std::array<TileKernel<T>, kTileRows> tile_kernels(std::index_sequence<kIndex...>) {
  return {multiply_tile<T, static_cast<int>(kIndex) + 1, kVectors>...};
}

// The kernel for a tile of `rows` rows and one or two vectors of columns.
template <class T>
TileKernel<T> tile_kernel(int64_t rows, int64_t columns) {
  constexpr auto kIndices = std::make_index_sequence<kTileRows>();
  static constexpr auto kNarrow = tile_kernels<T, 1>(kIndices);
  static constexpr auto kWide = tile_kernels<T, 2>(kIndices);
  return columns <= kLanes<T> ? kNarrow[rows - 1] : kWide[rows - 1];
}

// A matrix seen as [outer, depth]: rows of A or columns of B, by position in the sum.
template <class T>
struct Operand {
  const T* data;
  int64_t outer_step;
  int64_t depth_step;
  const T* at(int64_t outer, int64_t depth) const {
    return data + outer * outer_step + depth * depth_step;
  }
};

// Copies rows to panel [depth, kWidth] where the operand is contiguous along its depth. The last
// row stands in for rows that are not there; what is computed from it is not stored.
template <class T, int64_t kWidth>
void pack_transposed(const Operand<T>& from, int64_t width, int64_t depth, T* panel) {
  constexpr int64_t kGroups = (kWidth + kLanes<T> - 1) / kLanes<T>;
  int64_t p = 0;
  for (; p + kLanes<T> <= depth; p += kLanes<T>) {
    for (int64_t group = 0; group < kGroups; ++group) {
      Vector<T> square[kLanes<T>];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<T>; ++i) {
        square[i] = load(from.at(std::min(group * kLanes<T> + i, width - 1), p));
      }
      transpose_square<T>(square);
      constexpr int64_t kLast = kWidth - (kGroups - 1) * kLanes<T>;  // lanes of the last group
      const int64_t lanes = group + 1 < kGroups ? kLanes<T> : kLast;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<T>; ++i) {
        std::memcpy(panel + (p + i) * kWidth + group * kLanes<T>, &square[i],
                    static_cast<size_t>(lanes) * sizeof(T));
      }
    }
  }
  for (; p < depth; ++p) {
    for (int64_t i = 0; i < kWidth; ++i) {
      panel[p * kWidth + i] = *from.at(std::min(i, width - 1), p);
    }
  }
}

// The same where the operand is contiguous across its rows.
template <class T, int64_t kWidth>
void pack_straight(const Operand<T>& from, int64_t width, int64_t depth, T* panel) {
  for (int64_t p = 0; p < depth; ++p) {
    if (width == kWidth) {
      std::memcpy(panel + p * kWidth, from.at(0, p), kWidth * sizeof(T));
    } else {
      std::copy_n(from.at(0, p), width, panel + p * kWidth);
    }
  }
}

// Panels of kWidth rows of operand[first, first + count) x [begin, begin + depth).
template <class T, int64_t kWidth>
void pack(const Operand<T>& from, int64_t first, int64_t count, int64_t begin, int64_t depth,
          T* panels) {
  for (int64_t i = 0; i < count; i += kWidth, panels += kWidth * depth) {
    const Operand<T> part{from.at(first + i, begin), from.outer_step, from.depth_step};
    const int64_t width = std::min(kWidth, count - i);
    if (from.depth_step == 1) {
      pack_transposed<T, kWidth>(part, width, depth, panels);
    } else {
      pack_straight<T, kWidth>(part, width, depth, panels);
    }
  }
}

// Panels of one thread; they stay for the next call.
template <class T>
class PanelMemory {
 public:
  T* of_size(int64_t elements) {
    if (elements > size_) {
      data_.reset(static_cast<T*>(
          ::operator new (static_cast<size_t>(elements) * sizeof(T), std::align_val_t{64})));
      size_ = elements;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* data) const { ::operator delete (data, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// One block of A, packed, times one block of B, packed.
template <class T>
void multiply_block(const T* a, const T* b, int64_t rows, int64_t columns, int64_t depth,
                    TileTarget<T> target) {
  T* const c = target.c;
  for (int64_t j = 0; j < columns; j += kTileColumns<T>) {
    target.columns = std::min(kTileColumns<T>, columns - j);
    for (int64_t i = 0; i < rows; i += kTileRows) {
      target.c = c + i * target.ldc + j;
      const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i);
      tile_kernel<T>(tile_rows, target.columns)(a + i * depth, b + j * depth, depth, target);
    }
  }
}

template <class T>
void scale(T* c, int64_t ldc, int64_t m, int64_t n, T beta) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
    }
  }
}

}  // namespace

template <class T>
void gemm_serial(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                 T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c,
                 int64_t ldc) {
  if (k == 0) {
    scale(c, ldc, m, n, beta);
    return;
  }
  thread_local PanelMemory<T> a_memory, b_memory;
  const Operand<T> a_rows{a, transpose_a == Transpose::kNo ? lda : 1,
                          transpose_a == Transpose::kNo ? 1 : lda};
  const Operand<T> b_columns{b, transpose_b == Transpose::kNo ? 1 : ldb,
                             transpose_b == Transpose::kNo ? ldb : 1};
  constexpr int64_t kMaxDepth = kBlockDepthBytes / static_cast<int64_t>(sizeof(T));
  const int64_t pieces = (k + kMaxDepth - 1) / kMaxDepth;
  const int64_t block_depth = round_up((k + pieces - 1) / pieces, kLanes<T>);
  T* const a_panels = a_memory.of_size(round_up(std::min(m, kBlockRows), kTileRows) * block_depth);
  T* const b_panels =
      b_memory.of_size(round_up(std::min(n, kBlockColumns), kTileColumns<T>) * block_depth);
  for (int64_t j = 0; j < n; j += kBlockColumns) {
    const int64_t columns = std::min(kBlockColumns, n - j);
    for (int64_t p = 0; p < k; p += block_depth) {
      const int64_t depth = std::min(block_depth, k - p);
      pack<T, kTileColumns<T>>(b_columns, j, columns, p, depth, b_panels);
      for (int64_t i = 0; i < m; i += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, m - i);
        pack<T, kTileRows>(a_rows, i, rows, p, depth, a_panels);
        multiply_block<T>(a_panels, b_panels, rows, columns, depth,
                          {c + i * ldc + j, ldc, alpha, p == 0 ? beta : T(1), 0});
      }
    }
  }
}

template void gemm_serial<float>(Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                 const float*, int64_t, const float*, int64_t, float, float*,
                                 int64_t);
template void gemm_serial<double>(Transpose, Transpose, int64_t, int64_t, int64_t, double,
                                  const double*, int64_t, const double*, int64_t, double, double*,
                                  int64_t);

}  // namespace tandem

// The building blocks of matrix products on the CPU, after Goto and van de Geijn 2008 ("Anatomy of
// high-performance matrix multiplication"). Panels are copies of a few rows or columns in the order
// of use. Tiles of C stay in registers while the loop sums over the depth k.
//
// Each element of C is summed in the order of the depth, for all sizes and wherever in C it lies.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "src/kernels/vector.h"

namespace tandem {

// A tile of C has at most kTileRows x kTileColumns elements. Of the other registers, two hold a row
// of B and two are for broadcasts of A.
inline constexpr int kTileVectors = 2;
inline constexpr int kTileRows = (kVectorRegisters - 4) / kTileVectors;
template <class T>
inline constexpr int64_t kTileColumns = kTileVectors* kLanes<T>;

// Where a product is written: c = beta * c + alpha * product + bias[column]; `bias` may be null.
template <class T>
struct ProductTarget {
  T* c;
  int64_t ldc;
  T alpha;
  T beta;  // 0 overwrites c
  const T* bias = nullptr;
};

// Writes a tile with fewer columns than its vectors hold. Always inlined, and the loops over `sum`
// are unrolled here and below, so that `sum` stays in registers.
template <class T, int kRows, int kVectors>
[[gnu::always_inline]] inline void write_part(const Vector<T> (&sum)[kRows][kVectors],
                                              const ProductTarget<T>& target, int64_t columns) {
  T tile[kRows][kVectors * kLanes<T>];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      store<T>(&tile[i][v * kLanes<T>], sum[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    T* c = target.c + i * target.ldc;
    for (int64_t j = 0; j < columns; ++j) {
      const T value = target.alpha * tile[i][j] + (target.bias ? target.bias[j] : T(0));
      c[j] = target.beta == T(0) ? value : value + target.beta * c[j];
    }
  }
}

// Writes a full tile. kAdds: beta is not 0.
template <bool kAdds, class T, int kRows, int kVectors>
[[gnu::always_inline]] inline void write_whole(const Vector<T> (&sum)[kRows][kVectors],
                                               const ProductTarget<T>& target) {
  // Copies, because the compiler must assume that a store to c changes the target.
  T* c = target.c;
  const int64_t ldc = target.ldc;
  const T alpha = target.alpha, beta = target.beta;
  Vector<T> bias[kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    bias[v] = target.bias ? load(target.bias + v * kLanes<T>) : Vector<T>{};
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i, c += ldc) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      T* to = c + v * kLanes<T>;
      const Vector<T> value = alpha * sum[i][v] + bias[v];
      store<T>(to, kAdds ? value + beta * load(to) : value);
    }
  }
}

// Computes one tile. Row i of the tile at depth p is a[i * kRowStep + p * kDepthStep]; b is [depth,
// kTileColumns].
template <class T, int kRows, int kVectors, int64_t kRowStep, int64_t kDepthStep>
void multiply_tile(const T* a, const T* b, int64_t depth, const ProductTarget<T>& target,
                   int64_t columns) {
  Vector<T> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = Vector<T>{};
    }
  }
  // The tile of C arrives while the loop runs, one row in each part of the depth: fetched at once,
  // its lines would keep those of B waiting.
  const T* c = target.c;
  int64_t p = 0;
#pragma GCC unroll 1
  for (int part = 1; part <= kRows; ++part, c += target.ldc) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      __builtin_prefetch(c + v * kLanes<T>, 1);
    }
    const int64_t end = depth * part / kRows;
    for (; p < end; ++p, a += kDepthStep, b += kTileColumns<T>) {
      Vector<T> row[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        row[v] = load(b + v * kLanes<T>);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          sum[i][v] += a[i * kRowStep] * row[v];
        }
      }
    }
  }
  if (columns < kVectors * kLanes<T>) {
    write_part<T, kRows, kVectors>(sum, target, columns);
  } else if (target.beta == T(0)) {
    write_whole<false, T, kRows, kVectors>(sum, target);
  } else {
    write_whole<true, T, kRows, kVectors>(sum, target);
  }
}

template <class T>
using TileKernel = void (*)(const T*, const T*, int64_t, const ProductTarget<T>&, int64_t);

// The kernel for a tile with `rows` rows and at most kTileColumns columns.
template <class T, int64_t kRowStep, int64_t kDepthStep>
TileKernel<T> tile_kernel(int64_t rows, int64_t columns) {
  constexpr auto kAll = []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<std::array<TileKernel<T>, kTileRows>, 2>{
        {{multiply_tile<T, static_cast<int>(kIndex) + 1, 1, kRowStep, kDepthStep>...},
         {multiply_tile<T, static_cast<int>(kIndex) + 1, 2, kRowStep, kDepthStep>...}}};
  }
  (std::make_index_sequence<kTileRows>());
  static constexpr auto kKernels = kAll;
  return kKernels[columns > kLanes<T>][rows - 1];
}

// Panels at equal distances in memory; `step` is in elements.
template <class T>
struct Panels {
  const T* data;
  int64_t step;
  const T* operator[](int64_t index) const { return data + index * step; }
  // If they have kTileRows rows: without the rows before this one, a multiple of kTileRows, or
  // without the elements before this depth.
  Panels from_row(int64_t row) const { return {(*this)[row / kTileRows], step}; }
  Panels from_depth(int64_t depth) const { return {data + depth * kTileRows, step}; }
};

template <class T, int64_t kRowStep, int64_t kDepthStep>
void multiply_panels(Panels<T> a, Panels<T> b, int64_t rows, int64_t columns, int64_t depth,
                     const ProductTarget<T>& target) {
  for (int64_t j = 0; j < columns; j += kTileColumns<T>) {
    const int64_t tile_columns = std::min(kTileColumns<T>, columns - j);
    ProductTarget<T> part = target;
    part.bias = target.bias ? target.bias + j : nullptr;
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i);
      part.c = target.c + i * target.ldc + j;
      tile_kernel<T, kRowStep, kDepthStep>(tile_rows, tile_columns)(
          a[i / kTileRows], b[j / kTileColumns<T>], depth, part, tile_columns);
    }
  }
}

// a: panels [depth, kTileRows], b: panels [depth, kTileColumns].
template <class T>
void multiply_packed(Panels<T> a, Panels<T> b, int64_t rows, int64_t columns, int64_t depth,
                     const ProductTarget<T>& target) {
  multiply_panels<T, 1, kTileRows>(a, b, rows, columns, depth, target);
}

// Like multiply_packed(), but `a` is [rows, kTileColumns], the result of a product with one panel
// of columns; depth <= kTileColumns.
template <class T>
void multiply_rows(const T* a, Panels<T> b, int64_t rows, int64_t columns, int64_t depth,
                   const ProductTarget<T>& target) {
  multiply_panels<T, kTileColumns<T>, 1>({a, kTileRows * kTileColumns<T>}, b, rows, columns, depth,
                                         target);
}

// Like multiply_packed(), but `a` is [depth, kTileColumns]: row i of the product comes from column
// i of `a`; rows <= kTileColumns.
template <class T>
void multiply_columns(const T* a, Panels<T> b, int64_t rows, int64_t columns, int64_t depth,
                      const ProductTarget<T>& target) {
  multiply_panels<T, 1, kTileColumns<T>>({a, kTileRows}, b, rows, columns, depth, target);
}

// A matrix seen as [outer, depth]: the rows of A or the columns of B, with depth the axis that is
// summed over.
template <class T>
struct Operand {
  const T* data;
  int64_t outer_step;
  int64_t depth_step;
  const T* at(int64_t outer, int64_t depth) const {
    return data + outer * outer_step + depth * depth_step;
  }
  Operand from(int64_t outer, int64_t depth) const {
    return {at(outer, depth), outer_step, depth_step};
  }
};

// Copies rows to a panel [depth, kWidth], for an operand that is contiguous along its depth.
// Missing rows are copies of the last row; what is computed from them is not stored. Writes up to
// one vector past the end of the panel. Meanwhile fetches what is `ahead` elements further, for the
// next panel: these are more rows than the processor follows by itself.
template <class T, int64_t kWidth>
void pack_transposed(const Operand<T>& from, int64_t width, int64_t depth, T* panel,
                     int64_t ahead) {
  constexpr int64_t kGroups = (kWidth + kLanes<T> - 1) / kLanes<T>;
  const T* rows[kGroups * kLanes<T>];
  for (int64_t i = 0; i < kGroups * kLanes<T>; ++i) {
    rows[i] = from.at(std::min(i, width - 1), 0);
  }
  int64_t p = 0;
  for (; p + kLanes<T> <= depth; p += kLanes<T>) {
    for (int64_t group = 0; group < kGroups; ++group) {
      Vector<T> square[kLanes<T>];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<T>; ++i) {
        const T* row = rows[group * kLanes<T> + i] + p;
        square[i] = load(row);
        __builtin_prefetch(row + ahead, 0, 2);
      }
      transpose_square<T>(square);
      // With one group each row may spill into the next row, which is written later.
      const int64_t lanes =
          kGroups == 1 ? kLanes<T> : std::min<int64_t>(kLanes<T>, kWidth - group * kLanes<T>);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes<T>; ++i) {
        std::memcpy(panel + (p + i) * kWidth + group * kLanes<T>, &square[i],
                    static_cast<size_t>(lanes) * sizeof(T));
      }
    }
  }
  for (; p < depth; ++p) {
    for (int64_t i = 0; i < kWidth; ++i) {
      panel[p * kWidth + i] = rows[i][p];
    }
  }
}

// Copies `count` rows to panels, for an operand that is contiguous across its rows. Missing rows
// stay uninitialized.
template <class T, int64_t kWidth>
void pack_straight(const Operand<T>& from, int64_t count, int64_t depth, T* panels) {
  // Copying a whole vector is faster. The next copy overwrites the surplus elements.
  constexpr int64_t kCopied = std::max<int64_t>(kWidth, kLanes<T>);
  for (int64_t p = 0; p < depth; ++p) {
    for (int64_t i = 0; i < count; i += kWidth) {
      T* to = panels + i * depth + p * kWidth;
      if (count - i >= kCopied && p + 1 < depth) {
        std::memcpy(to, from.at(i, p), kCopied * sizeof(T));
      } else if (count - i >= kWidth) {
        std::memcpy(to, from.at(i, p), kWidth * sizeof(T));
      } else {
        std::copy_n(from.at(i, p), std::min(kWidth, count - i), to);
      }
    }
  }
}

// Packs `count` rows with `depth` elements each into panels of kWidth rows. kWidth is kTileRows for
// A and kTileColumns for B.
template <class T, int64_t kWidth>
Panels<T> pack(const Operand<T>& from, int64_t count, int64_t depth, T* panels) {
  if (from.depth_step != 1) {
    pack_straight<T, kWidth>(from, count, depth, panels);
  } else {
    for (int64_t i = 0; i < count; i += kWidth) {
      pack_transposed<T, kWidth>(from.from(i, 0), std::min(kWidth, count - i), depth,
                                 panels + i * depth, kWidth * from.outer_step);
    }
  }
  return {panels, kWidth * depth};
}

// How many elements the panels for `count` rows need.
template <class T, int64_t kWidth>
int64_t panel_elements(int64_t count, int64_t depth) {
  return (count + kWidth - 1) / kWidth * kWidth * depth + kLanes<T>;
}

}  // namespace tandem

// GEMM on the calling thread, built from the pieces in gemm_tile.h. Where blocks of k begin depends
// only on k, so results do not depend on how C is cut over threads.
#include <memory>

#include "src/product/gemm.h"
#include "src/product/gemm_tile.h"

namespace tandem {

namespace {

// A block of B [depth, columns] fits in a second-level cache of 1 MiB. A block of A [rows, depth]
// is so wide that packing it reads whole cache lines. A group is what stays in the first-level
// cache beside a panel of B: fewer rows where registers are wide, because tiles then read B less
// often.
constexpr int64_t kBlockRows = 8 * kTileRows;
constexpr int64_t kGroupRows = kVectorBytes == 64 ? 2 * kTileRows : kBlockRows;
constexpr int64_t kBlockColumns = 512;
constexpr int64_t kBlockDepthBytes = 1536;

// Memory for the panels of one thread, kept for the next call.
template <class T>
class PanelMemory {
 public:
  T* of_size(int64_t elements) {
    if (elements > size_) {
      data_.reset(static_cast<T*>(::operator new (static_cast<size_t>(elements) * sizeof(T),
                                                  std::align_val_t{kVectorBytes})));
      size_ = elements;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* data) const { ::operator delete (data, std::align_val_t{kVectorBytes}); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

// The size of each block, at most `most`. Blocks are as equal as possible in whole units.
int64_t block_size(int64_t size, int64_t most, int64_t unit) {
  const int64_t blocks = std::max<int64_t>(1, (size + most - 1) / most);
  const int64_t even = (size + blocks - 1) / blocks;
  return (even + unit - 1) / unit * unit;
}

template <class T>
int64_t block_depth(int64_t k) {
  return block_size(k, kBlockDepthBytes / static_cast<int64_t>(sizeof(T)), kLanes<T>);
}

// Equal blocks, because each of them packs all of A.
template <class T>
int64_t block_columns(int64_t n) {
  return block_size(n, kBlockColumns, kTileColumns<T>);
}

// For k = 0, where there is no product to add.
template <class T>
void scale_only(const Gemm<T>& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      T& c = g.c[i * g.ldc + j];
      c = (g.beta == T(0) ? T(0) : g.beta * c) + (g.bias ? g.bias[j] : T(0));
    }
  }
}

template <class T>
Operand<T> rows_of_a(const Gemm<T>& g) {
  return {g.a, g.transpose_a ? 1 : g.lda, g.transpose_a ? g.lda : 1};
}

template <class T>
Operand<T> columns_of_b(const Gemm<T>& g) {
  return {g.b, g.transpose_b ? g.ldb : 1, g.transpose_b ? 1 : g.ldb};
}

// C from row i and column j on, for the block of the depth that begins at p.
template <class T>
ProductTarget<T> target_at(const Gemm<T>& g, int64_t i, int64_t j, int64_t p) {
  return {g.c + i * g.ldc + j, g.ldc, g.alpha, p == 0 ? g.beta : T(1),
          g.bias && p == 0 ? g.bias + j : nullptr};
}

// At most kGroupRows rows, and columns of B that are contiguous: reading these takes most of the
// time. Each panel of B is packed over the whole depth and used at once.
template <class T>
void multiply_few_rows(const Gemm<T>& g, PanelMemory<T>& a_memory, PanelMemory<T>& b_memory) {
  const int64_t whole_depth = block_depth<T>(g.k);
  T* const a_panels = a_memory.of_size(panel_elements<T, kTileRows>(g.m, g.k));
  T* const b_panel =
      b_memory.of_size(panel_elements<T, kTileColumns<T>>(kTileColumns<T>, whole_depth));
  const Panels<T> a = pack<T, kTileRows>(rows_of_a(g), g.m, g.k, a_panels);
  for (int64_t j = 0; j < g.n; j += kTileColumns<T>) {
    const int64_t columns = std::min(kTileColumns<T>, g.n - j);
    for (int64_t p = 0; p < g.k; p += whole_depth) {
      const int64_t depth = std::min(whole_depth, g.k - p);
      const bool is_last = p + depth == g.k;
      pack_transposed<T, kTileColumns<T>>(columns_of_b(g).from(j, p), columns, depth, b_panel,
                                          is_last ? kTileColumns<T> * g.ldb - p : depth);
      multiply_packed<T>({a.data + p * kTileRows, a.step}, {b_panel, 0}, g.m, columns, depth,
                         target_at(g, 0, j, p));
    }
  }
}

// How many of the columns from column j on have elements of rows before `end`.
template <class T>
int64_t columns_needed(const Gemm<T>& g, int64_t end, int64_t j, int64_t columns) {
  if (g.symmetric_row < 0) {
    return columns;
  }
  const int64_t needed = std::max<int64_t>(0, g.symmetric_row + end - j);
  return std::min(columns, (needed + kTileColumns<T> - 1) / kTileColumns<T> * kTileColumns<T>);
}

// Blocks of A are multiplied with a block of B that stays in the cache.
template <class T>
void multiply_blocks(const Gemm<T>& g, PanelMemory<T>& a_memory, PanelMemory<T>& b_memory) {
  const int64_t whole_depth = block_depth<T>(g.k), whole_columns = block_columns<T>(g.n);
  T* const a_block = a_memory.of_size(panel_elements<T, kTileRows>(kBlockRows, whole_depth));
  T* const b_block =
      b_memory.of_size(panel_elements<T, kTileColumns<T>>(whole_columns, whole_depth));
  for (int64_t j = 0; j < g.n; j += whole_columns) {
    const int64_t columns = std::min(whole_columns, g.n - j);
    for (int64_t p = 0; p < g.k; p += whole_depth) {
      const int64_t depth = std::min(whole_depth, g.k - p);
      const Panels<T> b =
          pack<T, kTileColumns<T>>(columns_of_b(g).from(j, p), columns, depth, b_block);
      for (int64_t i = 0; i < g.m; i += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, g.m - i);
        const Panels<T> a = pack<T, kTileRows>(rows_of_a(g).from(i, p), rows, depth, a_block);
        for (int64_t group = 0; group < rows; group += kGroupRows) {
          const int64_t group_rows = std::min(kGroupRows, rows - group);
          multiply_packed<T>({a[group / kTileRows], a.step}, b, group_rows,
                             columns_needed(g, i + group + group_rows, j, columns), depth,
                             target_at(g, i + group, j, p));
        }
      }
    }
  }
}

}  // namespace

template <class T>
void gemm_serial(const Gemm<T>& g) {
  thread_local PanelMemory<T> a_memory, b_memory;
  if (g.k == 0) {
    scale_only(g);
  } else if (g.m <= kGroupRows && g.transpose_b) {
    multiply_few_rows(g, a_memory, b_memory);
  } else {
    multiply_blocks(g, a_memory, b_memory);
  }
}

template void gemm_serial<float>(const Gemm<float>&);
template void gemm_serial<double>(const Gemm<double>&);

}  // namespace tandem

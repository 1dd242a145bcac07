// GEMM on the calling thread, built from the pieces in gemm_tile.h. Where blocks of k begin depends
// only on k, so results do not depend on how C is cut over threads.
#include <memory>

#include "src/product/gemm.h"
#include "src/product/gemm_tile.h"

namespace tandem {

namespace {

// A block of B [depth, columns] fits in a second-level cache of 1 MiB. A block of A [rows, depth]
// has fewer panels where registers are wide, because its tiles then read B less often.
constexpr int64_t kBlockRows = (kVectorBytes == 64 ? 2 : 8) * kTileRows;
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

// The depth of each block. Blocks are as equal as possible in whole vectors.
template <class T>
int64_t block_depth(int64_t k) {
  constexpr int64_t kMaxDepth = kBlockDepthBytes / static_cast<int64_t>(sizeof(T));
  const int64_t blocks = std::max<int64_t>(1, (k + kMaxDepth - 1) / kMaxDepth);
  const int64_t even = (k + blocks - 1) / blocks;
  return (even + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
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

// At most kBlockRows rows, and columns of B that are contiguous: reading these takes most of the
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
      const Panels<T> b =
          pack<T, kTileColumns<T>>(columns_of_b(g).from(j, p), columns, depth, b_panel);
      multiply_packed<T>({a.data + p * kTileRows, a.step}, b, g.m, columns, depth,
                         target_at(g, 0, j, p));
    }
  }
}

// Blocks of A are multiplied with a block of B that stays in the cache. A panel of B is packed just
// before its first use.
template <class T>
void multiply_blocks(const Gemm<T>& g, PanelMemory<T>& a_memory, PanelMemory<T>& b_memory) {
  const int64_t whole_depth = block_depth<T>(g.k), most_columns = std::min(g.n, kBlockColumns);
  T* const a_block = a_memory.of_size(panel_elements<T, kTileRows>(kBlockRows, whole_depth));
  T* const b_block =
      b_memory.of_size(panel_elements<T, kTileColumns<T>>(most_columns, whole_depth));
  for (int64_t first = 0; first < g.n; first += most_columns) {
    const int64_t end = std::min(g.n, first + most_columns);
    for (int64_t p = 0; p < g.k; p += whole_depth) {
      const int64_t depth = std::min(whole_depth, g.k - p);
      for (int64_t i = 0; i < g.m; i += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, g.m - i);
        const Panels<T> a = pack<T, kTileRows>(rows_of_a(g).from(i, p), rows, depth, a_block);
        for (int64_t j = first; j < end; j += kTileColumns<T>) {
          const int64_t columns = std::min(kTileColumns<T>, end - j);
          T* const b = b_block + (j - first) * depth;
          if (i == 0) {
            pack<T, kTileColumns<T>>(columns_of_b(g).from(j, p), columns, depth, b);
          }
          multiply_packed<T>(a, {b, 0}, rows, columns, depth, target_at(g, i, j, p));
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
  } else if (g.m <= kBlockRows && g.transpose_b) {
    multiply_few_rows(g, a_memory, b_memory);
  } else {
    multiply_blocks(g, a_memory, b_memory);
  }
}

template void gemm_serial<float>(const Gemm<float>&);
template void gemm_serial<double>(const Gemm<double>&);

}  // namespace tandem

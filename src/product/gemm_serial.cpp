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
void scale_only(int64_t m, int64_t n, const ProductTarget<T>& target) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T& c = target.c[i * target.ldc + j];
      c = (target.beta == T(0) ? T(0) : target.beta * c) + (target.bias ? target.bias[j] : T(0));
    }
  }
}

}  // namespace

template <class T>
void gemm_serial(const Gemm<T>& g) {
  const int64_t m = g.m, n = g.n, k = g.k;
  if (k == 0) {
    scale_only<T>(m, n, {g.c, g.ldc, g.alpha, g.beta, g.bias});
    return;
  }
  const Operand<T> rows_of_a{g.a, g.transpose_a ? 1 : g.lda, g.transpose_a ? g.lda : 1};
  const Operand<T> columns_of_b{g.b, g.transpose_b ? g.ldb : 1, g.transpose_b ? 1 : g.ldb};
  const int64_t whole_depth = block_depth<T>(k);
  // With one block of rows each panel of B is used once, so the next one may take its place.
  const bool keeps_b = m > kBlockRows;
  const int64_t block_columns = keeps_b ? std::min(n, kBlockColumns) : n;
  thread_local PanelMemory<T> a_memory, b_memory;
  T* const a_block =
      a_memory.of_size(panel_elements<T, kTileRows>(std::min(m, kBlockRows), whole_depth));
  T* const b_block = b_memory.of_size(
      panel_elements<T, kTileColumns<T>>(keeps_b ? block_columns : kTileColumns<T>, whole_depth));
  for (int64_t j = 0; j < n; j += block_columns) {
    const int64_t end = std::min(n, j + block_columns);
    for (int64_t p = 0; p < k; p += whole_depth) {
      const int64_t depth = std::min(whole_depth, k - p);
      for (int64_t i = 0; i < m; i += kBlockRows) {
        const int64_t rows = std::min(kBlockRows, m - i);
        const Panels<T> a = pack<T, kTileRows>(rows_of_a.from(i, p), rows, depth, a_block);
        for (int64_t c = j; c < end; c += kTileColumns<T>) {
          const int64_t columns = std::min(kTileColumns<T>, end - c);
          T* const b = b_block + (keeps_b ? (c - j) * depth : 0);
          if (i == 0) {
            pack<T, kTileColumns<T>>(columns_of_b.from(c, p), columns, depth, b);
          }
          multiply_packed<T>(a, {b, 0}, rows, columns, depth,
                             {g.c + i * g.ldc + c, g.ldc, g.alpha, p == 0 ? g.beta : T(1),
                              g.bias && p == 0 ? g.bias + c : nullptr});
        }
      }
    }
  }
}

template void gemm_serial<float>(const Gemm<float>&);
template void gemm_serial<double>(const Gemm<double>&);

}  // namespace tandem

// What implements multiply() of product.h: one function for each device, and the CPU's GEMM.
#pragma once

#include <algorithm>

#include "src/device/dispatch.h"
#include "src/product/product.h"

namespace tandem {

// Elements from a stored matrix's first to its last one, gaps included; op(matrix) is [rows,
// columns].
inline int64_t stored_elements(const Product::Operand& matrix, int64_t rows, int64_t columns) {
  const int64_t lines = matrix.transposed ? columns : rows;
  return rows * columns == 0 ? 0 : (lines - 1) * matrix.row_stride() + rows * columns / lines;
}

namespace kernels {

// Computes a product that the caller has checked: on the CPU without its epilogue, on a GPU in one
// call with all that it asks for.
void multiply(Cpu, const Product& product);
void multiply(Cuda device, const Product& product);

// The same on a GPU by a kernel of our own, for all types, sizes, strides and alignments. It is
// slow, with one thread for an element of D, and rounds as multiply() of product.h says.
void simple_product(Cuda device, const Product& product);

// Compares two arrays of f32, bf16 or fp16 on a GPU: writes for each of compare_threads(n) threads
// whether one of its elements differs. They are alike if they are equal, both no number, or no
// further apart than slack * max(|expected|, |size|); `size` may be empty.
inline int64_t compare_threads(int64_t n) { return std::min((n + 255) / 256 * 256, 1L << 16); }
void compare(Cuda device, const Tensor& found, const Tensor& expected, const Tensor& size,
             float slack, int32_t* differs);

}  // namespace kernels

// A product with a bias or an epilogue in two steps: the product without its last step, and that
// step, which changes D. The last step is the epilogue, or else the bias.
Product without_last_step(const Product& product);
void last_step(const Stream& stream, const Product& product);

// c = alpha * op(A) op(B) + beta * c + bias, for floats or doubles in CPU memory. lda, ldb and ldc
// are the distances between stored rows. beta = 0 overwrites c. `bias` may be null.
template <class T>
struct Gemm {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  T alpha;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T beta;
  T* c;
  int64_t ldc;
  const T* bias;
  // If not negative, these rows of C begin at that row of a symmetric matrix. Elements to the right
  // of its diagonal may be left as they are.
  int64_t symmetric_row = -1;
};

// Uses only the calling thread. Each element of C is summed in the order of k, so its bits depend
// neither on m and n nor on its place. std::bad_alloc without memory for copies of parts of A and
// B.
template <class T>
void gemm_serial(const Gemm<T>& gemm);

}  // namespace tandem

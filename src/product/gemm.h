// What implements multiply() of product.h: one function for each device, and the CPU's GEMM.
#pragma once

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

// Computes a product without its epilogue. The caller has checked it.
void multiply(Cpu, const Product& product);
void multiply(Cuda device, const Product& product);

// What remains of a product with k = 0: each row of C [m, n] is multiplied by beta, and the bias is
// added unless it is null.
template <class C>
void scale_rows(Cuda device, int64_t m, int64_t n, float beta, C* c, int64_t ldc, const C* bias);

}  // namespace kernels

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
};

// Uses only the calling thread. Each element of C is summed in the order of k, so its bits depend
// neither on m and n nor on its place. std::bad_alloc without memory for copies of parts of A and
// B.
template <class T>
void gemm_serial(const Gemm<T>& gemm);

}  // namespace tandem

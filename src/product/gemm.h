// What stands behind multiply() of product.h.
#pragma once

#include "src/device/dispatch.h"
#include "src/product/product.h"

namespace tandem {

// Elements from the first to the last one of a matrix as stored; op(matrix) is [rows, columns].
inline int64_t stored_elements(const Product::Operand& matrix, int64_t rows, int64_t columns) {
  const int64_t lines = matrix.transposed ? columns : rows;
  return rows * columns == 0 ? 0 : (lines - 1) * matrix.row_stride() + rows * columns / lines;
}

namespace kernels {

// A product that is possible, without its epilogue.
void multiply(Cpu, const Product& product);
void multiply(Cuda device, const Product& product);

// What is left of a product without depth (k = 0): each row of C [m, n] becomes beta times itself,
// plus the bias unless null.
template <class C>
void scale_rows(Cuda device, int64_t m, int64_t n, float beta, C* c, int64_t ldc, const C* bias);

}  // namespace kernels

// c = alpha * op(A) op(B) + beta * c + bias, of floats or doubles in CPU memory. lda, ldb and ldc
// are the distances between rows as stored; beta = 0 overwrites c; no bias is null.
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

// On the calling thread alone: Tandem's own (gemm_blocked.cpp) or CBLAS (gemm_cblas.cpp).
template <class T>
void gemm_serial(const Gemm<T>& gemm);

}  // namespace tandem

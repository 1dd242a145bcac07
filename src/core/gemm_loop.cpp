// GEMM where no CBLAS is installed: right, readable, and slow.
#include "src/core/gemm.h"

namespace tandem {

template <class T>
void gemm_serial(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                 T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c,
                 int64_t ldc) {
  const int64_t a_row = transpose_a == Transpose::kNo ? lda : 1,
                a_column = transpose_a == Transpose::kNo ? 1 : lda;
  const int64_t b_row = transpose_b == Transpose::kNo ? ldb : 1,
                b_column = transpose_b == Transpose::kNo ? 1 : ldb;
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) {
      row[j] = beta == T(0) ? T(0) : beta * row[j];
    }
    for (int64_t p = 0; p < k; ++p) {
      const T scaled = alpha * a[i * a_row + p * a_column];
      for (int64_t j = 0; j < n; ++j) {
        row[j] += scaled * b[p * b_row + j * b_column];
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

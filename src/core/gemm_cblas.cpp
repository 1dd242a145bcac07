#include <cblas.h>

#include "src/core/gemm.h"

// Tandem cuts GEMMs over its own threads, so OpenBLAS must not start any. Other CBLAS libraries
// lack the function.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace tandem {

namespace {

CBLAS_TRANSPOSE as_cblas(Transpose transpose) {
  return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans;
}

void use_one_blas_thread() {
  static const bool done = [] {
    if (openblas_set_num_threads) {
      openblas_set_num_threads(1);
    }
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

template <>
void gemm_serial<float>(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
                        int64_t k, float alpha, const float* a, int64_t lda, const float* b,
                        int64_t ldb, float beta, float* c, int64_t ldc) {
  use_one_blas_thread();
  cblas_sgemm(CblasRowMajor, as_cblas(transpose_a), as_cblas(transpose_b), static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda),
              b, static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

template <>
void gemm_serial<double>(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
                         int64_t k, double alpha, const double* a, int64_t lda, const double* b,
                         int64_t ldb, double beta, double* c, int64_t ldc) {
  use_one_blas_thread();
  cblas_dgemm(CblasRowMajor, as_cblas(transpose_a), as_cblas(transpose_b), static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda),
              b, static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

}  // namespace tandem

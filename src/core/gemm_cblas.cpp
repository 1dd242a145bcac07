#include <cblas.h>

#include <cstdlib>
#include <string_view>

#include "src/core/gemm.h"

// Entry points of OpenBLAS that are no part of CBLAS; null in other libraries.
extern "C" {
void openblas_set_num_threads(int) __attribute__((weak));
char* openblas_get_corename() __attribute__((weak));
void gotoblas_dynamic_quit() __attribute__((weak));
void gotoblas_dynamic_init() __attribute__((weak));
}

namespace tandem {

namespace {

CBLAS_TRANSPOSE as_cblas(Transpose transpose) {
  return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans;
}

// OpenBLAS before 0.3.22 takes an Intel processor newer than itself for one of 2004, and an AMD one
// with AVX-512 for one without: a fifth or a half of its speed. It chooses again when told what to
// look for. A choice made by the user (OPENBLAS_CORETYPE) stands.
void choose_openblas_kernels() {
  if (!openblas_get_corename || !gotoblas_dynamic_quit || !gotoblas_dynamic_init ||
      std::getenv("OPENBLAS_CORETYPE")) {
    return;
  }
#if defined(__x86_64__)
  const std::string_view chosen = openblas_get_corename();
  const bool oldest = chosen == "Prescott" || chosen == "Core2" || chosen == "Nehalem";
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  const bool narrow = chosen == "Haswell" || chosen == "Zen";
  if ((oldest && (avx512 || __builtin_cpu_supports("avx2"))) || (narrow && avx512)) {
    setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
  }
#endif
}

// Once, before the first product. Tandem cuts GEMMs over its own threads, so OpenBLAS must not
// start any.
void prepare_blas() {
  static const bool done = [] {
    choose_openblas_kernels();
    if (openblas_set_num_threads) {
      openblas_set_num_threads(1);
    }
    return true;
  }();
  static_cast<void>(done);
}

// CBLAS knows no bias: C becomes beta * C + bias first, and the product is added. Returns the beta
// that is left to do.
template <class T>
T with_bias(int64_t m, int64_t n, T beta, T* c, int64_t ldc, const T* bias) {
  if (!bias) {
    return beta;
  }
  for (int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) {
      row[j] = beta == T(0) ? bias[j] : beta * row[j] + bias[j];
    }
  }
  return T(1);
}

}  // namespace

template <>
void gemm_serial<float>(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
                        int64_t k, float alpha, const float* a, int64_t lda, const float* b,
                        int64_t ldb, float beta, float* c, int64_t ldc, const float* bias) {
  prepare_blas();
  beta = with_bias(m, n, beta, c, ldc, bias);
  cblas_sgemm(CblasRowMajor, as_cblas(transpose_a), as_cblas(transpose_b), static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda),
              b, static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

template <>
void gemm_serial<double>(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
                         int64_t k, double alpha, const double* a, int64_t lda, const double* b,
                         int64_t ldb, double beta, double* c, int64_t ldc, const double* bias) {
  prepare_blas();
  beta = with_bias(m, n, beta, c, ldc, bias);
  cblas_dgemm(CblasRowMajor, as_cblas(transpose_a), as_cblas(transpose_b), static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda),
              b, static_cast<blasint>(ldb), beta, c, static_cast<blasint>(ldc));
}

}  // namespace tandem

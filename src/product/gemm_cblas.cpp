#include <cblas.h>

#include <cstdlib>
#include <string_view>

#include "src/product/gemm.h"

// Functions of OpenBLAS that CBLAS does not have; null with other libraries.
extern "C" {
void openblas_set_num_threads(int) __attribute__((weak));
char* openblas_get_corename() __attribute__((weak));
void gotoblas_dynamic_quit() __attribute__((weak));
void gotoblas_dynamic_init() __attribute__((weak));
}

namespace tandem {

namespace {

CBLAS_TRANSPOSE as_cblas(bool transpose) { return transpose ? CblasTrans : CblasNoTrans; }

// OpenBLAS before 0.3.22 mistakes an Intel processor newer than itself for one of 2004, and an AMD
// processor with AVX-512 for one without. It then runs at a fifth or a half of its speed. When told
// which processor to assume, it chooses its kernels again. A choice by the user (OPENBLAS_CORETYPE)
// is kept.
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

// Runs once, before the first product. Tandem cuts GEMMs over its own threads, so OpenBLAS must not
// start threads.
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

// CBLAS has no bias, so C first becomes beta * C + bias, and then the product is added. Returns the
// beta that CBLAS must still apply.
template <class T>
T add_bias(const Gemm<T>& g) {
  if (!g.bias) {
    return g.beta;
  }
  for (int64_t i = 0; i < g.m; ++i) {
    T* row = g.c + i * g.ldc;
    for (int64_t j = 0; j < g.n; ++j) {
      row[j] = g.beta == T(0) ? g.bias[j] : g.beta * row[j] + g.bias[j];
    }
  }
  return T(1);
}

// `gemm` is cblas_sgemm or cblas_dgemm.
template <class T, class F>
void call_cblas(const Gemm<T>& g, F gemm) {
  const auto size = [](int64_t n) { return static_cast<blasint>(n); };
  prepare_blas();
  const T beta = add_bias(g);
  gemm(CblasRowMajor, as_cblas(g.transpose_a), as_cblas(g.transpose_b), size(g.m), size(g.n),
       size(g.k), g.alpha, g.a, size(g.lda), g.b, size(g.ldb), beta, g.c, size(g.ldc));
}

}  // namespace

template <>
void gemm_serial<float>(const Gemm<float>& gemm) {
  call_cblas(gemm, cblas_sgemm);
}

template <>
void gemm_serial<double>(const Gemm<double>& gemm) {
  call_cblas(gemm, cblas_dgemm);
}

}  // namespace tandem

#include "src/core/gemm.h"

#include <omp.h>

#include <algorithm>

namespace tandem {

namespace {

constexpr int64_t kParallelFlops = 1
                                   << 20;  // below this a parallel region costs more than it saves
constexpr int64_t kTile = 32;              // pieces start at multiples of the micro-kernels' widths

}  // namespace

// C is cut along its longer side into one piece for each thread; a piece is an independent GEMM.
template <class T>
void gemm(Cpu, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
          T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc,
          const T* bias) {
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads == 1 || 2 * m * n * k < kParallelFlops) {
    gemm_serial(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias);
    return;
  }
  const bool by_rows = m >= n;
  const int64_t extent = by_rows ? m : n;
  const int64_t piece = ((extent + threads - 1) / threads + kTile - 1) / kTile * kTile;
#pragma omp parallel for schedule(static, 1)
  for (int64_t first = 0; first < extent; first += piece) {
    const int64_t count = std::min(piece, extent - first);
    if (by_rows) {
      gemm_serial(transpose_a, transpose_b, count, n, k, alpha,
                  a + first * (transpose_a == Transpose::kNo ? lda : 1), lda, b, ldb, beta,
                  c + first * ldc, ldc, bias);
    } else {
      gemm_serial(transpose_a, transpose_b, m, count, k, alpha, a, lda,
                  b + first * (transpose_b == Transpose::kNo ? 1 : ldb), ldb, beta, c + first, ldc,
                  bias ? bias + first : nullptr);
    }
  }
}

template void gemm<float>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, float, const float*,
                          int64_t, const float*, int64_t, float, float*, int64_t, const float*);
template void gemm<double>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, double,
                           const double*, int64_t, const double*, int64_t, double, double*, int64_t,
                           const double*);

}  // namespace tandem

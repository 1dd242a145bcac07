#include "src/core/gemm.h"

#include <omp.h>

#include <algorithm>

#include "src/core/in_f32.h"

namespace tandem {

namespace {

constexpr int64_t kParallelFlops = 1
                                   << 20;  // below this a parallel region costs more than it saves
constexpr int64_t kTile = 32;              // pieces start at multiples of the micro-kernels' widths

// Elements from the first to the last one of a matrix as stored.
int64_t extent(int64_t rows, int64_t columns, int64_t stride) {
  return rows > 0 && columns > 0 ? (rows - 1) * stride + columns : 0;
}

// f(row, column) for a matrix, rows in parallel.
template <class F>
void for_elements(int64_t rows, int64_t columns, F f) {
#pragma omp parallel for schedule(static) firstprivate(f) if (rows * columns >= kParallelElements)
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      f(i, j);
    }
  }
}

// A 16-bit C as a matrix of f32, rows n apart. Nothing between its rows is read or written.
template <class C>
class WideResult {
 public:
  WideResult(int64_t m, int64_t n, C* c, int64_t ldc)
      : m_(m),
        n_(n),
        c_(c),
        ldc_(ldc),
        wide_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(m * n))) {}
  float* data() { return wide_.get(); }
  void load() {
    for_elements(m_, n_, [n = n_, from = c_, ldc = ldc_, to = data()](int64_t i, int64_t j) {
      to[i * n + j] = from[i * ldc + j];
    });
  }
  void store() {
    for_elements(m_, n_, [n = n_, from = data(), to = c_, ldc = ldc_](int64_t i, int64_t j) {
      to[i * ldc + j] = C(from[i * n + j]);
    });
  }

 private:
  int64_t m_, n_;
  C* c_;
  int64_t ldc_;
  std::unique_ptr<float[]> wide_;
};

// C is cut along its longer side into one piece for each thread; a piece is an independent GEMM.
template <class T>
void gemm_parallel(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                   T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c,
                   int64_t ldc, const T* bias) {
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads == 1 || 2 * m * n * k < kParallelFlops) {
    gemm_serial(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias);
    return;
  }
  const bool by_rows = m >= n;
  const int64_t whole = by_rows ? m : n;
  const int64_t piece = ((whole + threads - 1) / threads + kTile - 1) / kTile * kTile;
#pragma omp parallel for schedule(static, 1)
  for (int64_t first = 0; first < whole; first += piece) {
    const int64_t count = std::min(piece, whole - first);
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

}  // namespace

template <class T, class C>
void gemm(Cpu device, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
          Wide<T> alpha, const T* a, int64_t lda, const T* b, int64_t ldb, Wide<T> beta, C* c,
          int64_t ldc, const T* bias) {
  require(std::is_same_v<T, C> || !bias, "gemm: a bias needs a C of its own type");
  if (m == 0 || n == 0) {
    return;
  }
  if constexpr (std::is_same_v<C, Wide<T>> && !kIs16Bit<T>) {
    gemm_parallel(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, bias);
  } else if constexpr (std::is_same_v<C, float>) {
    const bool a_flipped = transpose_a == Transpose::kYes;
    const bool b_flipped = transpose_b == Transpose::kYes;
    in_f32(
        [&](const float* a32, const float* b32) {
          gemm_parallel<float>(transpose_a, transpose_b, m, n, k, alpha, a32, lda, b32, ldb, beta,
                               c, ldc, nullptr);
        },
        in(a, extent(a_flipped ? k : m, a_flipped ? m : k, lda)),
        in(b, extent(b_flipped ? n : k, b_flipped ? k : n, ldb)));
  } else {
    WideResult<C> result(m, n, c, ldc);
    if (beta != 0) {
      result.load();
    }
    gemm(device, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, result.data(), n);
    if (bias) {
      for_elements(
          m, n, [n, bias, to = result.data()](int64_t i, int64_t j) { to[i * n + j] += bias[j]; });
    }
    result.store();
  }
}

template void gemm<float, float>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                 const float*, int64_t, const float*, int64_t, float, float*,
                                 int64_t, const float*);
template void gemm<double, double>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, double,
                                   const double*, int64_t, const double*, int64_t, double, double*,
                                   int64_t, const double*);
template void gemm<Bf16, Bf16>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                               const Bf16*, int64_t, const Bf16*, int64_t, float, Bf16*, int64_t,
                               const Bf16*);
template void gemm<Bf16, float>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                const Bf16*, int64_t, const Bf16*, int64_t, float, float*, int64_t,
                                const Bf16*);
template void gemm<Fp16, Fp16>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                               const Fp16*, int64_t, const Fp16*, int64_t, float, Fp16*, int64_t,
                               const Fp16*);
template void gemm<Fp16, float>(Cpu, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                const Fp16*, int64_t, const Fp16*, int64_t, float, float*, int64_t,
                                const Fp16*);

}  // namespace tandem

#include "src/product/gemm.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "src/kernels/in_f32.h"

namespace tandem {

namespace {

// Below this many operations a parallel region costs more than it saves.
constexpr int64_t kParallelFlops = 1 << 20;
constexpr int64_t kTile = 32;    // pieces start at multiples of the micro-kernels' widths
constexpr int64_t kCopied = 16;  // columns at once, so that the rows they come from stay in a cache

// Calls f(row, column) for each element of a matrix, rows in parallel.
template <class F>
void for_elements(int64_t rows, int64_t columns, F f) {
#pragma omp parallel for schedule(static) firstprivate(f) if (rows * columns >= kParallelElements)
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      f(i, j);
    }
  }
}

// Cuts C along its longer side into one piece for each thread. Each piece is an independent GEMM.
template <class T>
void cut_over_threads(const Gemm<T>& whole) {
  const int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  if (threads == 1 || 2 * whole.m * whole.n * whole.k < kParallelFlops) {
    gemm_serial(whole);
    return;
  }
  const bool by_rows = whole.m >= whole.n;
  const int64_t length = by_rows ? whole.m : whole.n;
  const auto begin_of = [&](int piece) {
    const double share = static_cast<double>(piece) / threads;  // of the work: below a diagonal too
    const double at =
        static_cast<double>(length) * (whole.symmetric_row < 0 ? share : std::sqrt(share));
    return std::min(length, (static_cast<int64_t>(at) + kTile - 1) / kTile * kTile);
  };
  std::exception_ptr error;  // of memory for panels
#pragma omp parallel for schedule(static, 1)
  for (int i = 0; i < threads; ++i) {
    const int64_t first = begin_of(i), count = begin_of(i + 1) - first;
    if (count == 0) {
      continue;
    }
    Gemm<T> piece = whole;
    if (by_rows) {
      piece.m = count;
      piece.symmetric_row += whole.symmetric_row < 0 ? 0 : first;
      piece.a += first * (whole.transpose_a ? 1 : whole.lda);
      piece.c += first * whole.ldc;
    } else {
      piece.n = count;
      piece.b += first * (whole.transpose_b ? whole.ldb : 1);
      piece.c += first;
      piece.bias = whole.bias ? whole.bias + first : nullptr;
    }
    try {
      gemm_serial(piece);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

// The whole C. What is right of the diagonal of a symmetric one is copied.
template <class T>
void gemm_parallel(const Gemm<T>& gemm) {
  cut_over_threads(gemm);
  const int64_t n = gemm.symmetric_row == 0 ? gemm.n : 0;
  for (int64_t first = 0; first < n; first += kCopied) {
    const int64_t end = std::min(first + kCopied, n);
    for (int64_t i = 0; i < end; ++i) {
      for (int64_t j = std::max(first, i + 1); j < end; ++j) {
        gemm.c[i * gemm.ldc + j] = gemm.c[j * gemm.ldc + i];
      }
    }
  }
}

template <class T>
Gemm<T> gemm_of(const Product& p, const T* a, const T* b, T* c, const T* bias) {
  return {.transpose_a = p.a.transposed,
          .transpose_b = p.b.transposed,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .alpha = static_cast<T>(p.alpha),
          .a = a,
          .lda = p.a.row_stride(),
          .b = b,
          .ldb = p.b.row_stride(),
          .beta = static_cast<T>(p.beta),
          .c = c,
          .ldc = p.d.row_stride(),
          .bias = bias,
          .symmetric_row = p.is_symmetric ? 0 : -1};
}

// The product for a 16-bit C: computed in f32, then rounded. Does not touch the gaps between C's
// rows.
template <class C>
void gemm_rounded(Gemm<float> gemm, C* c, const C* bias) {
  const int64_t m = gemm.m, n = gemm.n, ldc = gemm.ldc;
  const auto wide = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(m * n));
  gemm.c = wide.get();
  gemm.ldc = n;
  if (gemm.beta != 0) {
    for_elements(m, n,
                 [=, to = wide.get()](int64_t i, int64_t j) { to[i * n + j] = c[i * ldc + j]; });
  }
  gemm_parallel(gemm);
  for_elements(m, n, [=, from = wide.get()](int64_t i, int64_t j) {
    c[i * ldc + j] = C(bias ? from[i * n + j] + bias[j] : from[i * n + j]);
  });
}

}  // namespace

void kernels::multiply(Cpu, const Product& p) {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  on_float(p.a.data.dtype(), [&]<class T>() {
    const T *a = p.a.data.data<T>(), *b = p.b.data.data<T>();
    const T* bias = p.bias ? p.bias.data<T>() : nullptr;
    if constexpr (!kIs16Bit<T>) {
      gemm_parallel(gemm_of<T>(p, a, b, p.d.data.data<T>(), bias));
    } else {
      in_f32(
          [&](const float* a32, const float* b32) {
            if (p.d.data.dtype() == DType::kF32) {
              gemm_parallel(gemm_of<float>(p, a32, b32, p.d.data.data<float>(), nullptr));
            } else {
              gemm_rounded<T>(gemm_of<float>(p, a32, b32, nullptr, nullptr), p.d.data.data<T>(),
                              bias);
            }
          },
          in(a, stored_elements(p.a, p.m, p.k)), in(b, stored_elements(p.b, p.k, p.n)));
    }
  });
}

}  // namespace tandem

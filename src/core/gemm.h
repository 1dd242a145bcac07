// C = alpha * op(A) * op(B) + beta * C, plus a bias in every row, for row-major matrices.
#pragma once

#include "src/core/dispatch.h"

namespace tandem {

enum class Transpose : uint8_t { kNo, kYes };

// op(A) is [m, k], op(B) is [k, n], C is [m, n]; lda, ldb, ldc are the distances between rows as
// stored, in elements. beta 0 overwrites C, whatever it holds. bias [n] is added to each row of C
// unless null. Called outside a parallel region it uses all CPU threads.
template <class T>
void gemm(Cpu device, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
          T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc,
          const T* bias = nullptr);

// The same on the calling thread alone; the body is Tandem's own (gemm_blocked.cpp) or CBLAS
// (gemm_cblas.cpp).
template <class T>
void gemm_serial(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                 T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c,
                 int64_t ldc, const T* bias = nullptr);

}  // namespace tandem

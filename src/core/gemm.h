// C = alpha * op(A) * op(B) + beta * C, plus a bias in every row, for row-major matrices.
#pragma once

#include "src/core/dispatch.h"

namespace tandem {

enum class Transpose : uint8_t { kNo, kYes };

// op(A) is [m, k], op(B) is [k, n], C is [m, n]; lda, ldb, ldc are the distances between rows as
// stored, in elements. beta 0 overwrites C, whatever it holds. bias [n] is added to each row of C
// unless null.
//
// A and B are T: float, double (on the CPU), Bf16 or Fp16. C is T, or Wide<T> without a bias:
// gradients of 16-bit weights add up in f32. Sums are Wide<T>; what C stores is rounded once.
//
// CPU: called outside a parallel region it uses all CPU threads; for one number of threads the bits
// are always the same, between two numbers a library may round differently.
template <class T, class C>
void gemm(Cpu device, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
          Wide<T> alpha, const T* a, int64_t lda, const T* b, int64_t ldb, Wide<T> beta, C* c,
          int64_t ldc, const T* bias = nullptr);
// Throws Error(kInternal) when cuBLASLt refuses, with the product's sizes. The first product of a
// stream, and of each size, allocates or asks for an algorithm: not while a graph is captured.
template <class T, class C>
void gemm(Cuda device, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
          int64_t k, Wide<T> alpha, const T* a, int64_t lda, const T* b, int64_t ldb, Wide<T> beta,
          C* c, int64_t ldc, const T* bias = nullptr);

// The same on the calling thread alone, for float and double; the body is Tandem's own
// (gemm_blocked.cpp) or CBLAS (gemm_cblas.cpp).
template <class T>
void gemm_serial(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                 T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c,
                 int64_t ldc, const T* bias = nullptr);

namespace kernels {

// What is left of a product without depth (k = 0): each row of C [m, n] becomes beta times itself,
// plus the bias.
template <class C>
void scale_rows(Cuda device, int64_t m, int64_t n, float beta, C* c, int64_t ldc, const C* bias);

}  // namespace kernels

}  // namespace tandem

// A product that the emulated cuBLASLt was asked for, once its descriptors have been checked.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace simt::cublas {

inline constexpr size_t kWorkspaceBytes = 256;  // for every algorithm, which overwrites it

struct Operation {
  static constexpr uint64_t kMark = 0x6f7065726174696f;
  uint64_t mark = kMark;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  int64_t aux_stride = 0;

  bool has_bias() const { return epilogue & CUBLASLT_EPILOGUE_BIAS; }
  bool has_aux() const { return epilogue & 128; }
};

struct Layout {
  static constexpr uint64_t kMark = 0x6c61796f7574206f;
  uint64_t mark = kMark;
  uint64_t rows, columns;
  int64_t stride;
  cudaDataType_t type;
};

struct Product {
  Operation operation;
  Layout a, b, c, d;
  uint64_t m, n, k;
};

struct Call {
  Product product;
  float alpha, beta;
  const void *a, *b, *c;
  void *d, *workspace;
  int algorithm;
};

// Computes it, on the stream; checks that all operands lie in device memory.
void run(const Call& call);

}  // namespace simt::cublas

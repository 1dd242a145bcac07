// Matrix products by cuBLASLt: what is asked, which algorithms it suggests, and running one.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "src/device/cuda.h"
#include "src/product/product.h"

namespace tandem {

// The library's handle with a workspace in GPU memory, for products that run one after another.
class CublasLt {
 public:
  // As much as NVIDIA recommends for sm_90. Other GPUs need it, too: a weight gradient is a small
  // matrix and a long sum, which fills a GPU only when it is split, and each part takes m n floats.
  static constexpr int64_t kWorkspaceBytes = 32 << 20;

  // Errors: kOutOfMemory, and kInternal with the library's words.
  CublasLt();
  cublasLtHandle_t handle() const { return handle_.get(); }
  void* workspace() const { return workspace_.get(); }

  static std::string version();  // "cuBLASLt 130100"

 private:
  std::unique_ptr<cublasLtContext, cublasStatus_t (*)(cublasLtHandle_t)> handle_{nullptr,
                                                                                 cublasLtDestroy};
  std::unique_ptr<void, void (*)(void*)> workspace_{nullptr, cuda::release};
};

// The descriptors of a product in one call, with its bias and its epilogue. They hold no addresses
// of operands, so they serve all products with the same ProductKey and Alignments.
class CublasLtProduct {
 public:
  // Whether the library's documentation allows this product in one call: a bias must be aligned to
  // 16 bytes. With an epilogue D must have the type of A and B, and its rows must be multiples of 8
  // elements; the other operand of the epilogue must be aligned to 16 bytes.
  static bool is_possible(const Product& product);

  explicit CublasLtProduct(const Product& product);
  // The library's suggestions for operands aligned as this product's, the best one first.
  std::vector<cublasLtMatmulAlgo_t> suggestions(const CublasLt& library, const Product& product);
  // Enqueues the product. False, and nothing is enqueued, if the library says that the algorithm
  // does not support it. Throws Error for any other failure.
  bool run(const CublasLt& library, CUstream_st* stream, const Product& product,
           const cublasLtMatmulAlgo_t& algorithm);

 private:
  template <class V>
  void set(const Product& product, cublasLtMatmulDescAttributes_t attribute, V value);
  void set_addresses(const Product& product);

  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
};

}  // namespace tandem

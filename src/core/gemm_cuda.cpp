// Matrix products on a GPU, by cuBLASLt.
//
// cuBLASLt counts along columns first: what is stored here as rows [r, c] it sees as a matrix
// [c, r]. So it is asked for the transposed equation, C^T = op(B)^T op(A)^T, with A and B
// exchanged; the transposes stay what they are, and the bias runs along the rows it knows.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "src/core/cuda.h"
#include "src/core/cuda_check.h"
#include "src/core/gemm.h"
#include "src/core/memory.h"

namespace tandem {

namespace {

// What NVIDIA recommends for sm_90, and for GPUs before it.
constexpr int64_t kHopperWorkspaceBytes = 32 << 20, kWorkspaceBytes = 4 << 20;

// Kernels differ by how wide they load, 16 bytes at most.
uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 16;
  return static_cast<uint32_t>(address & (~address + 1));
}

// What the choice of an algorithm depends on.
struct Product {
  DType in, out;
  Transpose transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldc;
  bool has_bias;
  uint32_t align_a, align_b, align_c, align_bias;  // bytes
  auto operator<=>(const Product&) const = default;
};

std::string name_of(const Product& product) {
  const auto matrix = [](Transpose transpose, int64_t rows, int64_t columns, int64_t stride) {
    const bool flipped = transpose == Transpose::kYes;
    return str("[", flipped ? columns : rows, ", ", flipped ? rows : columns, "]",
               flipped ? "^T" : "", " (stride ", stride, ")");
  };
  return str("a product of ", name_of(product.in), ", ",
             matrix(product.transpose_a, product.m, product.k, product.lda), " times ",
             matrix(product.transpose_b, product.k, product.n, product.ldb), " into ",
             name_of(product.out), " ", matrix(Transpose::kNo, product.m, product.n, product.ldc),
             product.has_bias ? " with bias" : "");
}

void check(cublasStatus_t status, const Product& product,
           std::source_location place = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::kOutOfMemory : ExitCode::kInternal,
         str("cuBLASLt: ", cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status),
             ") for ", name_of(product), ", in ", place.function_name()));
  }
}

cudaDataType_t cublas_type(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return CUDA_R_16BF;
    case DType::kFp16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// Rows [rows, columns] as stored, seen by columns.
cublasLtMatrixLayoutOpaque_t layout(const Product& product, DType dtype, Transpose transpose,
                                    int64_t rows, int64_t columns, int64_t stride) {
  if (transpose == Transpose::kYes) {
    std::swap(rows, columns);
  }
  cublasLtMatrixLayoutOpaque_t result;
  check(cublasLtMatrixLayoutInit(&result, cublas_type(dtype), static_cast<uint64_t>(columns),
                                 static_cast<uint64_t>(rows), stride),
        product);
  return result;
}

// A product as cuBLASLt's descriptors, with the algorithm chosen for it.
struct Plan {
  Plan(cublasLtHandle_t handle, const Product& product, const void* bias, int64_t workspace_bytes);
  template <class V>
  void set(cublasLtMatmulDescAttributes_t attribute, V value) {
    check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value), product);
  }
  void choose_algorithm(cublasLtHandle_t handle, int64_t workspace_bytes);

  Product product;
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

Plan::Plan(cublasLtHandle_t handle, const Product& p, const void* bias, int64_t workspace_bytes)
    : product(p),
      a(layout(p, p.in, p.transpose_a, p.m, p.k, p.lda)),
      b(layout(p, p.in, p.transpose_b, p.k, p.n, p.ldb)),
      c(layout(p, p.out, Transpose::kNo, p.m, p.n, p.ldc)) {
  // Plain f32 arithmetic for f32 operands: TF32, with its 10 bits, would be another type
  // (CUBLAS_COMPUTE_32F_FAST_TF32).
  check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), product);
  const auto as_cublas = [](Transpose transpose) {
    return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, as_cublas(p.transpose_b));
  set(CUBLASLT_MATMUL_DESC_TRANSB, as_cublas(p.transpose_a));
  if (p.has_bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);  // the choice below looks at its alignment
  }
  choose_algorithm(handle, workspace_bytes);
}

// The first choice of the library's heuristic.
void Plan::choose_algorithm(cublasLtHandle_t handle, int64_t workspace_bytes) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), product);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
          product);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  // A long sum may be cut in pieces, but those are added in f32: not in C, nor rounded to its type.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.align_b);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.align_a);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.align_c);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.align_c);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, &operation, &b, &a, &c, &c, &preference, 1, &found,
                                       &count),
        product);
  check(count > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED, product);
  algorithm = found.algo;
}

// What one stream multiplies with. Its products follow each other and so can share a workspace.
class Lane {
 public:
  explicit Lane(const Product& first) : workspace_bytes_(workspace_bytes()) {
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle), first);
    handle_.reset(handle);
    workspace_.reset(cuda::allocate(workspace_bytes_));
    if (!workspace_) {
      fail(ExitCode::kOutOfMemory,
           str("no GPU memory for the workspace of cuBLASLt, ", format_bytes(workspace_bytes_)));
    }
  }

  void multiply(CUstream_st* stream, const Product& product, float alpha, const void* a,
                const void* b, float beta, void* c, const void* bias) {
    const std::lock_guard lock(mutex_);
    auto found = plans_.find(product);
    if (found == plans_.end()) {
      found = plans_.emplace(product, Plan(handle_.get(), product, bias, workspace_bytes_)).first;
    }
    Plan& plan = found->second;
    if (bias) {
      plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    check(cublasLtMatmul(handle_.get(), &plan.operation, &alpha, b, &plan.b, a, &plan.a, &beta, c,
                         &plan.c, c, &plan.c, &plan.algorithm, workspace_.get(),
                         static_cast<size_t>(workspace_bytes_), stream),
          product);
  }

 private:
  static int64_t workspace_bytes() {
    int device = 0, major = 0;
    cuda::check(cudaGetDevice(&device));
    cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9 ? kHopperWorkspaceBytes : kWorkspaceBytes;
  }
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { static_cast<void>(cublasLtDestroy(handle)); }
  };
  struct Release {
    void operator()(void* data) const { cuda::release(data); }
  };

  int64_t workspace_bytes_;
  std::unique_ptr<cublasLtContext, Destroy> handle_;
  std::unique_ptr<void, Release> workspace_;
  std::mutex mutex_;
  std::map<Product, Plan> plans_;
};

Lane& lane_of(CUstream_st* stream, const Product& first) {
  static std::mutex mutex;
  // Lives to the end: the driver may be gone before static objects are.
  static auto& lanes = *new std::map<CUstream_st*, Lane>;
  const std::lock_guard lock(mutex);
  return lanes.try_emplace(stream, first).first->second;
}

}  // namespace

template <class T, class C>
void gemm(Cuda device, Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
          int64_t k, Wide<T> alpha, const T* a, int64_t lda, const T* b, int64_t ldb, Wide<T> beta,
          C* c, int64_t ldc, const T* bias) {
  require(std::is_same_v<T, C> || !bias, "gemm: a bias needs a C of its own type");
  if (m == 0 || n == 0) {
    return;
  }
  if (k == 0) {
    if constexpr (std::is_same_v<T, C>) {
      kernels::scale_rows(device, m, n, beta, c, ldc, bias);
    } else {
      kernels::scale_rows<C>(device, m, n, beta, c, ldc, nullptr);
    }
    return;
  }
  const Product product{.in = dtype_of<T>,
                        .out = dtype_of<C>,
                        .transpose_a = transpose_a,
                        .transpose_b = transpose_b,
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = lda,
                        .ldb = ldb,
                        .ldc = ldc,
                        .has_bias = bias != nullptr,
                        .align_a = alignment(a),
                        .align_b = alignment(b),
                        .align_c = alignment(c),
                        .align_bias = alignment(bias)};
  lane_of(device.stream, product).multiply(device.stream, product, alpha, a, b, beta, c, bias);
}

template void gemm<float, float>(Cuda, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                 const float*, int64_t, const float*, int64_t, float, float*,
                                 int64_t, const float*);
template void gemm<Bf16, Bf16>(Cuda, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                               const Bf16*, int64_t, const Bf16*, int64_t, float, Bf16*, int64_t,
                               const Bf16*);
template void gemm<Bf16, float>(Cuda, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                const Bf16*, int64_t, const Bf16*, int64_t, float, float*, int64_t,
                                const Bf16*);
template void gemm<Fp16, Fp16>(Cuda, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                               const Fp16*, int64_t, const Fp16*, int64_t, float, Fp16*, int64_t,
                               const Fp16*);
template void gemm<Fp16, float>(Cuda, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                const Fp16*, int64_t, const Fp16*, int64_t, float, float*, int64_t,
                                const Fp16*);

}  // namespace tandem

// Matrix products on a GPU, by cuBLASLt.
//
// cuBLASLt assumes column-major matrices: it sees rows [r, c] stored here as a matrix [c, r]. So we
// ask for the transposed equation, C^T = op(B)^T op(A)^T, with A and B exchanged. Each operand
// keeps its transpose flag, and the bias runs along what cuBLASLt sees as rows.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "src/device/cuda.h"
#include "src/device/cuda_check.h"
#include "src/device/memory.h"
#include "src/product/gemm.h"

namespace tandem {

namespace {

// NVIDIA's recommendation for sm_90, and for GPUs before it.
constexpr int64_t kHopperWorkspaceBytes = 32 << 20, kWorkspaceBytes = 4 << 20;

// A pointer's alignment in bytes, at most 16: wider kernels do not exist, but kernels differ in the
// alignment that they need.
uint32_t alignment(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 16;
  return static_cast<uint32_t>(address & (~address + 1));
}

// All that the choice of an algorithm depends on.
struct PlanKey {
  DType in, out;
  bool transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldc;
  bool has_bias;
  uint32_t align_a, align_b, align_c, align_bias;  // in bytes
  auto operator<=>(const PlanKey&) const = default;
};

PlanKey key_of(const Product& p) {
  return {.in = p.a.data.dtype(),
          .out = p.d.data.dtype(),
          .transpose_a = p.a.transposed,
          .transpose_b = p.b.transposed,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .lda = p.a.row_stride(),
          .ldb = p.b.row_stride(),
          .ldc = p.d.row_stride(),
          .has_bias = static_cast<bool>(p.bias),
          .align_a = alignment(p.a.data.raw()),
          .align_b = alignment(p.b.data.raw()),
          .align_c = alignment(p.d.data.raw()),
          .align_bias = alignment(p.bias ? p.bias.raw() : nullptr)};
}

void check(cublasStatus_t status, const Product& product,
           std::source_location place = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::kOutOfMemory : ExitCode::kInternal,
         str("cuBLASLt: ", cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status),
             ") for ", product.text(), ", in ", place.function_name()));
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

// The layout of a stored matrix in column-major terms; op(matrix) is [rows, columns].
cublasLtMatrixLayoutOpaque_t layout(const Product& product, const Product::Operand& matrix,
                                    int64_t rows, int64_t columns) {
  if (matrix.transposed) {
    std::swap(rows, columns);
  }
  cublasLtMatrixLayoutOpaque_t result;
  check(cublasLtMatrixLayoutInit(&result, cublas_type(matrix.data.dtype()),
                                 static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                                 matrix.row_stride()),
        product);
  return result;
}

// cuBLASLt's descriptors for a product, with the algorithm that was chosen for it.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Product& p, int64_t workspace_bytes)
      : a_(layout(p, p.a, p.m, p.k)), b_(layout(p, p.b, p.k, p.n)), d_(layout(p, p.d, p.m, p.n)) {
    // f32 operands are multiplied in plain f32. TF32 (CUBLAS_COMPUTE_32F_FAST_TF32) has only 10
    // bits of mantissa.
    check(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), p);
    const auto as_cublas = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, as_cublas(p.b.transposed));
    set(p, CUBLASLT_MATMUL_DESC_TRANSB, as_cublas(p.a.transposed));
    if (p.bias) {
      set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set_bias(p);  // choose_algorithm() looks at the bias's alignment
    }
    choose_algorithm(handle, p, workspace_bytes);
  }

  void run(cublasLtHandle_t handle, CUstream_st* stream, const Product& p, void* workspace,
           int64_t workspace_bytes) {
    if (p.bias) {
      set_bias(p);
    }
    const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    check(cublasLtMatmul(handle, &operation_, &alpha, p.b.data.raw(), &b_, p.a.data.raw(), &a_,
                         &beta, p.d.data.raw(), &d_, p.d.data.raw(), &d_, &algorithm_, workspace,
                         static_cast<size_t>(workspace_bytes), stream),
          p);
  }

 private:
  template <class V>
  void set(const Product& p, cublasLtMatmulDescAttributes_t attribute, V value) {
    check(cublasLtMatmulDescSetAttribute(&operation_, attribute, &value, sizeof value), p);
  }
  void set_bias(const Product& p) {
    set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.raw()));
  }
  void choose_algorithm(cublasLtHandle_t handle, const Product& p, int64_t workspace_bytes);

  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t a_, b_, d_;
  cublasLtMatmulAlgo_t algorithm_;
};

// Takes the first suggestion of the library's heuristic.
void Plan::choose_algorithm(cublasLtHandle_t handle, const Product& p, int64_t workspace_bytes) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), p);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), p);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  // A long sum may be split into pieces, but these must be added in f32: neither in D nor rounded
  // to its type.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b.data.raw()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a.data.raw()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.d.data.raw()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.d.data.raw()));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, &operation_, &b_, &a_, &d_, &d_, &preference, 1,
                                       &found, &count),
        p);
  check(count > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED, p);
  algorithm_ = found.algo;
}

// The handle, plans and workspace of one stream. Products on a stream run one after the other, so
// they can share a workspace.
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

  void multiply(CUstream_st* stream, const Product& product) {
    const std::lock_guard lock(mutex_);
    const PlanKey key = key_of(product);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      found = plans_.emplace(key, Plan(handle_.get(), product, workspace_bytes_)).first;
    }
    found->second.run(handle_.get(), stream, product, workspace_.get(), workspace_bytes_);
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
  std::map<PlanKey, Plan> plans_;
};

Lane& lane_of(CUstream_st* stream, const Product& first) {
  static std::mutex mutex;
  // Never destroyed: at exit the driver may be gone before static objects are destroyed.
  static auto& lanes = *new std::map<CUstream_st*, Lane>;
  const std::lock_guard lock(mutex);
  return lanes.try_emplace(stream, first).first->second;
}

}  // namespace

void kernels::multiply(Cuda device, const Product& p) {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  if (p.k > 0) {
    lane_of(device.stream, p).multiply(device.stream, p);
    return;
  }
  on_float(p.d.data.dtype(), [&]<class C>() {
    if constexpr (!std::is_same_v<C, double>) {
      scale_rows(device, p.m, p.n, static_cast<float>(p.beta), p.d.data.data<C>(), p.d.row_stride(),
                 p.bias ? p.bias.data<C>() : nullptr);
    }
  });
}

}  // namespace tandem

// cuBLASLt assumes column-major matrices: it sees rows [r, c] stored here as a matrix [c, r]. So we
// ask for the transposed equation, C^T = op(B)^T op(A)^T, with A and B exchanged. Each operand
// keeps its transpose flag, and the bias runs along what cuBLASLt sees as rows.
#include "src/product/cublas_lt.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/device/cuda_check.h"
#include "src/device/memory.h"
#include "src/product/product_choice.h"

namespace tandem {

namespace {

constexpr int kMostSuggestions = 32;
constexpr uint32_t kEpilogueAlignment = 16;  // bytes
constexpr int64_t kEpilogueMultiple = 8;     // elements

void check(cublasStatus_t status, const std::string& what,
           std::source_location place = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail(status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::kOutOfMemory : ExitCode::kInternal,
         str("cuBLASLt: ", cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status),
             ") for ", what, ", in ", place.function_name()));
  }
}

// The text of the product is only made for a message.
void check(cublasStatus_t status, const Product& product,
           std::source_location place = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    check(status, product.text(), place);
  }
}

bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
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

cublasLtEpilogue_t cublas_epilogue(const Product& p) {
  switch (p.epilogue) {
    case Epilogue::kGelu:
      return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    default:
      return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
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

}  // namespace

CublasLt::CublasLt() {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "its handle");
  handle_.reset(handle);
  workspace_.reset(cuda::allocate(kWorkspaceBytes));
  if (!workspace_) {
    fail(ExitCode::kOutOfMemory, "no GPU memory for the workspace of cuBLASLt, ",
         format_bytes(kWorkspaceBytes));
  }
}

std::string CublasLt::version() { return str("cuBLASLt ", cublasLtGetVersion()); }

bool CublasLtProduct::is_possible(const Product& p) {
  const Alignments align = Alignments::of(p);
  const bool bias_fits = !p.bias || align.bias >= kEpilogueAlignment;
  return bias_fits && (p.epilogue == Epilogue::kNone ||
                       (p.d.data.dtype() == p.a.data.dtype() && p.n % kEpilogueMultiple == 0 &&
                        align.gelu_input >= kEpilogueAlignment &&
                        !(p.epilogue == Epilogue::kGeluGradient && p.bias)));
}

CublasLtProduct::CublasLtProduct(const Product& p)
    : a_(layout(p, p.a, p.m, p.k)), b_(layout(p, p.b, p.k, p.n)), d_(layout(p, p.d, p.m, p.n)) {
  // f32 operands are multiplied in plain f32. TF32 (CUBLAS_COMPUTE_32F_FAST_TF32) has only 10 bits
  // of mantissa.
  check(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), p);
  const auto as_cublas = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(p, CUBLASLT_MATMUL_DESC_TRANSA, as_cublas(p.b.transposed));
  set(p, CUBLASLT_MATMUL_DESC_TRANSB, as_cublas(p.a.transposed));
  set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, cublas_epilogue(p));
  if (p.epilogue != Epilogue::kNone) {
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
  }
}

template <class V>
void CublasLtProduct::set(const Product& p, cublasLtMatmulDescAttributes_t attribute, V value) {
  check(cublasLtMatmulDescSetAttribute(&operation_, attribute, &value, sizeof value), p);
}

void CublasLtProduct::set_addresses(const Product& p) {
  if (p.bias) {
    set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(p.bias.raw()));
  }
  if (p.epilogue != Epilogue::kNone) {
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(p.gelu_input.raw()));
  }
}

std::vector<cublasLtMatmulAlgo_t> CublasLtProduct::suggestions(const CublasLt& library,
                                                               const Product& p) {
  set_addresses(p);  // the library looks at the alignment of a bias
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), p);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), p);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{CublasLt::kWorkspaceBytes});
  // A long sum may be split into pieces, but these must be added in f32: neither in D nor rounded
  // to its type.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const Alignments align = Alignments::of(p);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align.b);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align.a);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align.d);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align.d);
  cublasLtMatmulHeuristicResult_t found[kMostSuggestions];
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library.handle(), &operation_, &b_, &a_, &d_, &d_, &preference,
                                     kMostSuggestions, found, &count);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (is_refusal(status)) {
    return algorithms;
  }
  check(status, p);
  for (int i = 0; i < count; ++i) {
    if (found[i].state == CUBLAS_STATUS_SUCCESS) {
      algorithms.push_back(found[i].algo);
    }
  }
  return algorithms;
}

bool CublasLtProduct::run(const CublasLt& library, CUstream_st* stream, const Product& p,
                          const cublasLtMatmulAlgo_t& algorithm) {
  set_addresses(p);
  const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const cublasStatus_t status =
      cublasLtMatmul(library.handle(), &operation_, &alpha, p.b.data.raw(), &b_, p.a.data.raw(),
                     &a_, &beta, p.d.data.raw(), &d_, p.d.data.raw(), &d_, &algorithm,
                     library.workspace(), static_cast<size_t>(CublasLt::kWorkspaceBytes), stream);
  if (is_refusal(status)) {
    return false;
  }
  check(status, p);
  return true;
}

}  // namespace tandem

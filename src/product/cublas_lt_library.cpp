// cuBLASLt is loaded when it is first called: that takes 0.1 s, for 350,000 addresses that the
// loader writes, and most commands never multiply on a GPU. These definitions stand for the
// library's when the program is linked; each hands its call on.
#include <dlfcn.h>

#include "src/core/error.h"
#include "src/product/cublas_lt.h"

namespace tandem {
namespace {

void* find(const char* name) {
  static void* const library = dlopen(TANDEM_CUBLAS_LT, RTLD_NOW | RTLD_LOCAL);
  void* const found = library ? dlsym(library, name) : nullptr;
  if (!found) {
    fail(ExitCode::kConfig, "cuBLASLt cannot be loaded (", dlerror(),
         "); install it, or put its folder on LD_LIBRARY_PATH");
  }
  return found;
}

template <auto function, class... Arguments>
auto call(const char* name, Arguments... arguments) {
  static const auto in_library = reinterpret_cast<decltype(function)>(find(name));
  return in_library(arguments...);
}

}  // namespace
}  // namespace tandem

using tandem::call;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return call<cublasLtCreate>(__func__, handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return call<cublasLtDestroy>(__func__, handle);
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return call<cublasLtGetStatusName>(__func__, status);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return call<cublasLtGetStatusString>(__func__, status);
}

size_t cublasLtGetVersion() { return call<cublasLtGetVersion>(__func__); }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t product, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  return call<cublasLtMatmulDescInit_internal>(__func__, product, size, compute, scale);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  return call<cublasLtMatmulDescSetAttribute>(__func__, product, attribute, value, size);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t matrix, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t stride) {
  return call<cublasLtMatrixLayoutInit_internal>(__func__, matrix, size, type, rows, columns,
                                                 stride);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t size) {
  return call<cublasLtMatmulPreferenceInit_internal>(__func__, preference, size);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  return call<cublasLtMatmulPreferenceSetAttribute>(__func__, preference, attribute, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  return call<cublasLtMatmulAlgoGetHeuristic>(__func__, handle, product, a, b, c, d, preference,
                                              asked, results, found);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t size,
                              cudaStream_t stream) {
  return call<cublasLtMatmul>(__func__, handle, product, alpha, a, a_layout, b, b_layout, beta, c,
                              c_layout, d, d_layout, algorithm, workspace, size, stream);
}

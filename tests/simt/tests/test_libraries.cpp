// The emulated cuBLASLt reports each broken rule by name, and CUDA's errors are those of the
// program. Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "src/core/error.h"
#include "src/device/cuda_check.h"
#include "tests/simt/tests/rules.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

// --- CUDA ---

// Another machine may do what a sick GPU cannot. A wrong kernel is wrong everywhere.
TEST(CudaErrors, OfASickGpuAreTemporaryAndNameTheHost) {
  const auto error_of = [](cudaError_t code) {
    try {
      cuda::check(code);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("of host " + test_world().host()), std::string::npos)
          << error.what();
      return error.code();
    }
    return ExitCode::kOk;
  };
  for (const cudaError_t code :
       {cudaErrorDevicesUnavailable, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
        cudaErrorHardwareStackError, cudaErrorLaunchFailure, cudaErrorSystemNotReady,
        cudaErrorUnknown}) {
    EXPECT_EQ(error_of(code), ExitCode::kTemporary) << code;
  }
  for (const cudaError_t code :
       {cudaErrorInvalidValue, cudaErrorIllegalAddress, cudaErrorMisalignedAddress}) {
    EXPECT_EQ(error_of(code), ExitCode::kInternal) << code;
  }
  EXPECT_EQ(error_of(cudaErrorMemoryAllocation), ExitCode::kOutOfMemory);
  EXPECT_EQ(error_of(cudaSuccess), ExitCode::kOk);
}

// --- cuBLASLt ---

// C [n, n] = A B in f32, in separate steps, so that a test can spoil one of them.
struct Product {
  static constexpr int64_t n = 8;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t layout;
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t chosen;
  float *a = device_floats(n * n), *b = device_floats(n * n), *c = device_floats(n * n);
  float* workspace = device_floats(1024);

  Product() {
    cublasLtCreate(&handle);
    cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutInit(&layout, CUDA_R_32F, n, n, n);
    cublasLtMatmulPreferenceInit(&preference);
    const uint64_t bytes = 4096;
    cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
  }
  ~Product() {
    for (float* data : {a, b, c, workspace}) {
      cudaFree(data);
    }
    cublasLtDestroy(handle);
  }
  void choose() {
    int found = 0;
    cublasLtMatmulAlgoGetHeuristic(handle, &operation, &layout, &layout, &layout, &layout,
                                   &preference, 1, &chosen, &found);
  }
  void run(size_t workspace_bytes = 4096) {
    const float alpha = 1, beta = 0;
    cublasLtMatmul(handle, &operation, &alpha, a, &layout, b, &layout, &beta, c, &layout, c,
                   &layout, &chosen.algo, workspace, workspace_bytes, nullptr);
  }
};

TEST(CublasLtRules, AreKept) {
  Product product;
  const std::string message = simt::failure_of([&] {
    product.choose();
    product.run();
  });
  EXPECT_EQ(message, "");
}

TEST(CublasLtRules, DescriptorsAreInitialised) {
  Product product;
  product.layout = {};
  expect_caught("descriptor was not initialised", [&] { product.choose(); });
}

TEST(CublasLtRules, AnAlgorithmServesItsProductAlone) {
  Product product;
  product.choose();
  const cublasOperation_t flipped = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(&product.operation, CUBLASLT_MATMUL_DESC_TRANSA, &flipped,
                                 sizeof flipped);
  expect_caught("chosen for another product", [&] { product.run(); });
}

TEST(CublasLtRules, OperandsAreAlignedAsPromised) {
  Product product;
  product.choose();
  float* const whole = product.a;
  product.a = whole + 1;
  expect_caught("less aligned than the algorithm was promised", [&] { product.run(); });
  product.a = whole;
}

TEST(CublasLtRules, WorkspaceIsLargeEnough) {
  Product product;
  product.choose();
  expect_caught("workspace smaller", [&] { product.run(16); });
}

TEST(CublasLtRules, OperandsAreDeviceMemory) {
  Product product;
  product.choose();
  std::swap(product.a, product.workspace);
  cudaFree(product.a);
  expect_caught("A of cublasLtMatmul", [&] { product.run(); });
  product.a = device_floats(1);
}

}  // namespace
}  // namespace tandem::testing

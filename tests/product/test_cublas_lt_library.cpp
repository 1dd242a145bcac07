// What a machine without a GPU can see of cuBLASLt's calls: they reach the library, with their
// arguments in order.
#include <dlfcn.h>

#include "src/core/error.h"
#include "src/product/cublas_lt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

template <class Function>
Function* in_library(const char* name) {
  const std::string file = str("libcublasLt.so.", CUBLAS_VER_MAJOR);
  return reinterpret_cast<Function*>(
      dlsym(dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL), name));
}

TEST(CublasLtLibrary, IsTheOneOfTheHeader) {
  EXPECT_EQ(CublasLt::version().rfind(str("cuBLASLt ", CUBLAS_VER_MAJOR), 0), 0u);
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

TEST(CublasLtLibrary, KeepsWhatADescriptorIsGiven) {
  cublasLtMatmulDescOpaque_t product;
  ASSERT_EQ(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_SUCCESS);
  const int32_t transposed = CUBLAS_OP_T;
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSB, &transposed,
                                           sizeof(transposed)),
            CUBLAS_STATUS_SUCCESS);
  const auto get =
      in_library<decltype(cublasLtMatmulDescGetAttribute)>("cublasLtMatmulDescGetAttribute");
  ASSERT_NE(get, nullptr);
  int32_t found = 0;
  size_t written = 0;
  for (const auto& [attribute, value] : {std::pair(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N),
                                         std::pair(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T)}) {
    ASSERT_EQ(get(&product, attribute, &found, sizeof(found), &written), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(found, value);
  }
}

TEST(CublasLtLibrary, KeepsWhatALayoutIsGiven) {
  cublasLtMatrixLayoutOpaque_t layout;
  ASSERT_EQ(cublasLtMatrixLayoutInit(&layout, CUDA_R_16BF, 24, 7, 32), CUBLAS_STATUS_SUCCESS);
  const auto get =
      in_library<decltype(cublasLtMatrixLayoutGetAttribute)>("cublasLtMatrixLayoutGetAttribute");
  ASSERT_NE(get, nullptr);
  size_t written = 0;
  for (const auto& [attribute, value] :
       {std::pair(CUBLASLT_MATRIX_LAYOUT_ROWS, 24), std::pair(CUBLASLT_MATRIX_LAYOUT_COLS, 7),
        std::pair(CUBLASLT_MATRIX_LAYOUT_LD, 32)}) {
    int64_t found = 0;
    ASSERT_EQ(get(&layout, attribute, &found, sizeof(found), &written), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(found, value);
  }
}

}  // namespace
}  // namespace tandem::testing

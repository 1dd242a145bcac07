// Whether cuDNN would compute attention on an A100 and on an H200. It is asked without a GPU: it
// plans for a GPU that a JSON text describes, and CUDA's stub stands in for the driver. Values are
// tested where there is a GPU (Attention.CudnnComputesTheSame).
#include <dlfcn.h>

#include <cmath>

#include "layers/attention/cudnn_attention.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

using cudnn_attention::Problem;
using cudnn_attention::Support;

// What cuDNN wants to know of a GPU, in its own words.
std::string gpu(const char* name, int version, int multiprocessors, int shared_bytes) {
  return str(R"({"deviceName": ")", name, R"(", "deviceVer": )", version,
             R"(, "multiProcessorCount": )", multiprocessors,
             R"(, "maxSharedMemoryPerBlockOptin": )", shared_bytes, R"(,
      "cudaDeviceId": 0, "driverVer": 13000, "totalGlobalMem": 80000000000,
      "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
      "regsPerBlock": 65536, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
      "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
      "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
      "supportCoopLaunch": 1, "smClockRateKHz": 1400000, "memClockRateKHz": 1200000,
      "l2CacheSize": 41943040})");
}

const std::pair<const char*, std::string> kGpus[] = {{"A100", gpu("A100", 800, 108, 166912)},
                                                     {"H200", gpu("H200", 900, 132, 232448)}};

constexpr HeadLayout kGpt{.heads = 12, .kv_heads = 12, .width = 64};
constexpr HeadLayout kLlama{.heads = 32, .kv_heads = 8, .width = 128};

class CudnnSupport : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cudnn_attention::why_missing().empty()) {
      GTEST_SKIP() << cudnn_attention::why_missing();
    }
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) &&
        !dlopen(TANDEM_STUB_DRIVER, RTLD_NOW | RTLD_GLOBAL)) {
      GTEST_SKIP() << "neither a driver nor its stub: " << dlerror();
    }
  }
};

TEST_F(CudnnSupport, GptAndLlamaHaveEnginesAndTheEstimatedWorkspace) {
  for (const auto& [name, text] : kGpus) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      for (const HeadLayout& layout : {kGpt, kLlama}) {
        for (const int64_t length : {1024, 2048, 1000}) {
          for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
            const Problem problem{.dtype = dtype, .batch = 2, .length = length, .layout = layout};
            SCOPED_TRACE(
                str(name, pass == Pass::kForward ? " forward " : " backward ", problem.text()));
            const Support support = cudnn_attention::support(problem, pass, text);
            EXPECT_FALSE(support.engines.empty());
            const int64_t expected = cudnn_attention::estimated_workspace_bytes(problem, pass) -
                                     (pass == Pass::kBackward ? problem.delta_bytes() : 0);
            EXPECT_LE(std::abs(support.workspace_bytes - expected), 1024)
                << support.workspace_bytes << " instead of " << expected;
          }
        }
      }
    }
  }
}

// A test that cannot fail would be worth nothing: heads of 1000 elements have no engine.
TEST_F(CudnnSupport, HeadsThatAreTooWideHaveNone) {
  const Problem problem{.length = 1024, .layout = {.heads = 2, .kv_heads = 2, .width = 1000}};
  for (const auto& [name, text] : kGpus) {
    bool is_supported = false;
    try {
      is_supported = !cudnn_attention::support(problem, Pass::kBackward, text).engines.empty();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
    }
    EXPECT_FALSE(is_supported) << name;
  }
}

TEST_F(CudnnSupport, ATextThatIsNoGpuIsAnError) {
  try {
    cudnn_attention::support({.length = 64, .layout = kGpt}, Pass::kForward, "{}");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("cuDNN: "), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tandem::testing

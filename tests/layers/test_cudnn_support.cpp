// Whether cuDNN would compute attention on an A100 and on an H200. It is asked without a GPU: it
// plans for a GPU that a JSON text describes, and CUDA's stub stands in for the driver. Values are
// tested where there is a GPU (Attention.CudnnComputesTheSame).
#include <dlfcn.h>

#include <cmath>

#include "layers/attention/cudnn_attention.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

using cudnn_attention::Gpu;
using cudnn_attention::Problem;
using cudnn_attention::require_engine;

// What cuDNN wants to know of a GPU, in its own words.
Gpu gpu(const char* name, int capability, int multiprocessors, int shared_bytes) {
  const std::string json = str(R"({"deviceName": ")", name, R"(", "deviceVer": )", 10 * capability,
                               R"(, "multiProcessorCount": )", multiprocessors,
                               R"(, "maxSharedMemoryPerBlockOptin": )", shared_bytes, R"(,
      "cudaDeviceId": 0, "driverVer": 13000, "totalGlobalMem": 80000000000,
      "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
      "regsPerBlock": 65536, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
      "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
      "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
      "supportCoopLaunch": 1, "smClockRateKHz": 1400000, "memClockRateKHz": 1200000,
      "l2CacheSize": 41943040})");
  return {.capability = capability, .json = json};
}

const std::pair<const char*, Gpu> kGpus[] = {{"A100", gpu("A100", 80, 108, 166912)},
                                             {"H200", gpu("H200", 90, 132, 232448)}};

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

// What require_engine() says against it; empty if there is an engine.
std::string refusal(const Problem& problem, Pass pass, const Gpu& gpu, int64_t most_bytes) {
  try {
    require_engine(problem, pass, gpu, most_bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
}

// The estimate is that of the workspace, within 1 KiB.
TEST_F(CudnnSupport, GptAndLlamaHaveEnginesAndTheEstimatedWorkspace) {
  for (const auto& [name, gpu] : kGpus) {
    for (const DType dtype : {DType::kBf16, DType::kFp16}) {
      for (const HeadLayout& layout : {kGpt, kLlama}) {
        for (const int64_t length : {1024, 2048, 1000}) {
          for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
            const Problem problem{.dtype = dtype, .batch = 2, .length = length, .layout = layout};
            SCOPED_TRACE(
                str(name, pass == Pass::kForward ? " forward " : " backward ", problem.text()));
            const int64_t bytes = cudnn_attention::estimated_workspace_bytes(problem, pass) -
                                  (pass == Pass::kBackward ? problem.delta_bytes() : 0);
            EXPECT_EQ(refusal(problem, pass, gpu, bytes + 1024), "");
            EXPECT_NE(refusal(problem, pass, gpu, bytes - 1025), "");
          }
        }
      }
    }
  }
}

TEST_F(CudnnSupport, HeadsThatAreTooWideHaveNone) {
  const Problem problem{.length = 1024, .layout = {.heads = 2, .kv_heads = 2, .width = 1000}};
  for (const auto& [name, gpu] : kGpus) {
    EXPECT_NE(refusal(problem, Pass::kBackward, gpu, int64_t{1} << 40), "") << name;
  }
}

TEST_F(CudnnSupport, ATextThatIsNoGpuIsAnError) {
  const Problem problem{.length = 64, .layout = kGpt};
  EXPECT_TRUE(refusal(problem, Pass::kForward, {80, "{}"}, 0).starts_with("cuDNN: "));
}

}  // namespace
}  // namespace tandem::testing

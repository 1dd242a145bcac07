// A step as one CUDA graph, against the same step without one (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

// Steps 3 and later are launches alone.
constexpr int kSteps = 5;

class StepGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    if (available_devices().back() != Device::kCuda || !Memory::keeps_gpu_blocks()) {
      GTEST_SKIP() << "there is no GPU, or its memory keeps no blocks";
    }
  }
};

void expect_equal_bits(Plan plan) {
  SCOPED_TRACE(str(plan.model, ", ", name_of(plan.dtype), ", stage ", plan.zero, ", micro-batch ",
                   plan.micro_batch, plan.recompute ? ", recompute" : ""));
  plan.device = Device::kCuda;
  plan.graph = false;
  const Outcome without = train(plan, kSteps);
  plan.graph = true;
  EXPECT_EQ(train(plan, kSteps), without);
}

TEST_F(StepGraph, ChangesNoBit) {
  for (const char* model : {"gpt", "llama", "resnet"}) {
    for (const int64_t micro_batch : {int64_t{0}, small_micro_batch()}) {
      expect_equal_bits({.model = model, .dtype = DType::kBf16, .micro_batch = micro_batch});
    }
  }
  expect_equal_bits({});
  expect_equal_bits({.optimizer = "muon"});
  expect_equal_bits({.model = "lora", .dtype = DType::kBf16, .micro_batch = small_micro_batch()});
  expect_equal_bits({.dtype = DType::kFp16, .recompute = true, .micro_batch = 1});
}

TEST_F(StepGraph, ChangesNoBitWhereStateIsSharded) {
  for (int zero = 1; zero < 4; ++zero) {
    expect_equal_bits({.zero = zero, .micro_batch = small_micro_batch()});
    expect_equal_bits({.model = "resnet",
                       .dtype = DType::kBf16,
                       .wire = DType::kBf16,
                       .gather_int8 = true,
                       .zero = zero,
                       .overlap = false});
    expect_equal_bits({.wire = DType::kI8,
                       .gather_int8 = true,
                       .zero = zero,
                       .micro_batch = small_micro_batch()});
    expect_equal_bits({.model = "llama", .dtype = DType::kBf16, .zero = zero, .optimizer = "muon"});
    expect_equal_bits({.model = "lora", .zero = zero});
  }
  if (test_world().size() == 4) {
    expect_equal_bits({.zero = 2, .node_size = 2, .sharing = Sharing::kNode});
    expect_equal_bits({.zero = 3, .node_size = 2});
    expect_equal_bits({.wire = DType::kI8, .node_size = 2});
  }
}

}  // namespace
}  // namespace tandem::testing

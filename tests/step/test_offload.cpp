// Masters and optimizer state in the host's memory, against the same steps with all of it on the
// GPU (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kSteps = 4;

class Offload : public ::testing::Test {
 protected:
  void SetUp() override {
    if (available_devices().back() != Device::kCuda) {
      GTEST_SKIP() << "there is no GPU";
    }
  }
};

// With many runs, which cut most shards, and with fewer than the window holds.
void expect_equal_bits(Plan plan, const std::vector<bool>& many_runs = {true, false}) {
  plan.device = Device::kCuda;
  for (const bool many : many_runs) {
    SCOPED_TRACE(str(plan.model, ", ", name_of(plan.dtype), ", ", plan.optimizer, ", stage ",
                     plan.zero, plan.exact ? ", exact" : "", many ? ", many runs" : ", few runs"));
    plan.bucket_bytes = many ? 2000 : 1 << 20;
    plan.offload_run = 0;
    const Outcome without = train(plan, kSteps);
    EXPECT_EQ(without.skipped, plan.poisoned_step >= 0 ? 1 : 0);
    plan.offload_run = many ? 256 : 1 << 20;
    EXPECT_EQ(train(plan, kSteps), without);
  }
}

TEST_F(Offload, ChangesNoBit) {
  expect_equal_bits({.dtype = DType::kBf16, .zero = 0, .micro_batch = small_micro_batch()}, {true});
  expect_equal_bits({.model = "llama", .zero = 1});
  expect_equal_bits({.dtype = DType::kFp16, .zero = 2, .exact = true, .recompute = true}, {true});
  expect_equal_bits({.dtype = DType::kBf16, .zero = 3, .micro_batch = small_micro_batch()}, {true});
}

TEST_F(Offload, ChangesNoBitWithOtherRules) {
  expect_equal_bits({.dtype = DType::kBf16, .zero = 1, .optimizer = "sgd"}, {true});
  expect_equal_bits({.zero = 1, .optimizer = "momentum"}, {true});
  expect_equal_bits({.zero = 1, .optimizer = "sgd"}, {true});  // without any state
}

TEST_F(Offload, ChangesNoBitWithOtherMessages) {
  expect_equal_bits({.dtype = DType::kBf16, .wire = DType::kI8, .gather_int8 = true, .zero = 3},
                    {true});
  expect_equal_bits({.gather_int8 = true, .zero = 1, .overlap = false}, {true});
}

// What came to be updated by the refused step goes back as it was.
TEST_F(Offload, ARefusedStepChangesNoBit) {
  for (const char* optimizer : {"adamw", "momentum"}) {
    expect_equal_bits({.dtype = DType::kFp16,
                       .zero = 1,
                       .micro_batch = small_micro_batch(),
                       .optimizer = optimizer,
                       .poisoned_step = 1},
                      {true});
  }
}

// No forward pass waits for the update of a head that its step leaves out. That head's gradients
// become zero in backward, and the update must have read them by then.
TEST_F(Offload, OfABlockThatAStepLeavesOutChangesNoBit) {
  for (const int zero : {0, 1}) {
    expect_equal_bits({.model = "two-heads", .zero = zero}, {true});
  }
}

// With three blocks that are recomputed, one leaves the device.
TEST_F(Offload, OfBlockInputsChangesNoBit) {
  Plan plan{.device = Device::kCuda,
            .dtype = DType::kBf16,
            .recompute = true,
            .micro_batch = small_micro_batch()};
  for (const int64_t layers : {1, 5}) {
    plan.model = layers == 1 ? "gpt" : "llama";
    plan.layers = layers;
    plan.zero = layers == 1 ? 3 : 0;  // with 0 a block waits for nothing else
    plan.parks_inputs = false;
    plan.offload_run = 0;
    const Outcome without = train(plan, kSteps);
    plan.parks_inputs = true;
    EXPECT_EQ(train(plan, kSteps), without) << layers << " layers";
    plan.offload_run = 256;
    EXPECT_EQ(train(plan, kSteps), without) << layers << " layers, both";
  }
}

// The nightly checks run this grid on two ranks.
TEST_F(Offload, ChangesNoBitInAnyCase) {
  if (std::getenv("TANDEM_OFFLOAD_ALL") == nullptr) {
    GTEST_SKIP() << "takes minutes; set TANDEM_OFFLOAD_ALL";
  }
  for (int zero = 0; zero < 4; ++zero) {
    for (const char* model : {"gpt", "llama", "resnet"}) {
      for (const char* optimizer : {"adamw", "sgd", "momentum"}) {
        for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
          for (const bool exact : {false, true}) {
            expect_equal_bits({.model = model,
                               .dtype = dtype,
                               .zero = zero,
                               .exact = exact,
                               .micro_batch = small_micro_batch(),
                               .optimizer = optimizer});
          }
        }
      }
    }
  }
}

TEST_F(Offload, FrozenParametersHaveNoState) {
  expect_equal_bits({.dtype = DType::kBf16, .zero = 3, .frozen = "blocks.0"}, {true});
}

}  // namespace
}  // namespace tandem::testing

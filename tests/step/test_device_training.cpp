// Whole training steps on every device, in every precision, over 1 to 4 ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kSteps = 4;

// About thirty values on the way to a target's loss each have an error of u = 2^-8 (bf16) or 2^-11
// (fp16) of either sign: together sqrt(30) * u of a logit of size one. Over the targets of a batch
// the errors cancel further, which leaves room for their growth in four steps of training.
double band(DType dtype) {
  return dtype == DType::kF32 ? 1e-4 : std::sqrt(30.0) * (dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11);
}

class DeviceTraining : public ::testing::TestWithParam<const char*> {};

// Every device and precision follows the loss curve of the CPU in f32. Before batch normalisation
// many gradients are mere rounding, and AdamW steps by the learning rate in their direction too. In
// 16 bits a tenth of it keeps these steps of a ResNet small.
TEST_P(DeviceTraining, FollowsTheCurve) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
    const bool small_steps = std::string(GetParam()) == "resnet" && dtype != DType::kF32;
    const Plan plan{.model = GetParam(), .lr = small_steps ? 0.001 : 0.01};
    const Outcome expected = train(plan);
    for_each_device([&](Device device) {
      SCOPED_TRACE(name_of(dtype));
      Plan other = plan;
      other.device = device;
      other.dtype = dtype;
      const Outcome actual = train(other);
      EXPECT_EQ(actual.skipped, 0);
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(actual.losses[step], expected.losses[step], band(dtype)) << "step " << step;
      }
    });
  }
}

TEST_P(DeviceTraining, RecomputationChangesNoBit) {
  for_each_device([&](Device device) {
    const DType dtype = device == Device::kCpu ? DType::kBf16 : DType::kF32;
    const Outcome kept = train({.model = GetParam(), .device = device, .dtype = dtype});
    const Outcome again =
        train({.model = GetParam(), .device = device, .dtype = dtype, .recompute = true});
    EXPECT_EQ(kept, again);
  });
}

TEST_P(DeviceTraining, RunsTwiceWithTheSameBits) {
  for_each_device([&](Device device) {
    const Plan plan{.model = GetParam(), .device = device, .dtype = DType::kFp16};
    EXPECT_EQ(train(plan), train(plan));
  });
}

// Accumulation adds gradients in another order. Tolerance: f32 rounding, amplified by four steps of
// training.
TEST_P(DeviceTraining, AccumulationKeepsTheCurve) {
  if (std::string(GetParam()) == "resnet") {
    GTEST_SKIP() << "batch statistics belong to the micro-batch";
  }
  for_each_device([&](Device device) {
    const Outcome whole = train({.model = GetParam(), .device = device});
    const Outcome parts = train({.model = GetParam(), .device = device, .micro_batch = 1});
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(whole.losses[step], parts.losses[step], 1e-5) << "step " << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceTraining,
                         ::testing::Values("gpt", "llama", "qwen", "resnet", "mlp"));

// Only adapters are trained: they follow the curve, and recomputation changes no bit.
TEST(DeviceTraining, Adapters) {
  const Outcome expected = train({.model = "lora"});
  EXPECT_LT(expected.losses[kSteps - 1], expected.losses[0]);
  for_each_device([&](Device device) {
    Plan plan{.model = "lora", .device = device, .dtype = DType::kBf16};
    const Outcome actual = train(plan);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(actual.losses[step], expected.losses[step], band(plan.dtype)) << "step " << step;
    }
    plan.recompute = true;
    EXPECT_EQ(train(plan), actual);
  });
}

// Heads that a GPU computes on tensor cores. The model is eight times as wide as the one that the
// band was derived for, and a step with the same learning rate changes its logits by as much more.
// So two steps, with one update between them, stay within the band.
TEST(DeviceTraining, TensorCores) {
  for (const char* model : {"gpt", "llama", "qwen"}) {
    const Outcome expected = train({.model = model, .head_width = 64}, 2);
    for_each_device([&](Device device) {
      for (DType dtype : {DType::kBf16, DType::kFp16}) {
        SCOPED_TRACE(str(model, " in ", name_of(dtype)));
        Plan plan{.model = model, .head_width = 64, .device = device, .dtype = dtype};
        const Outcome actual = train(plan, 2);
        EXPECT_EQ(actual.skipped, 0);
        for (int step = 0; step < 2; ++step) {
          EXPECT_NEAR(actual.losses[step], expected.losses[step], band(dtype)) << "step " << step;
        }
        plan.recompute = true;
        EXPECT_EQ(train(plan, 2), actual);
      }
    });
  }
}

// Gradients through MPI are added in the order of a ring; NCCL may add them in another order.
TEST(DeviceTraining, StagedThroughTheHost) {
  for_each_device([&](Device device) {
    const Outcome direct = train({.device = device});
    const Outcome staged = train({.device = device, .staged = true});
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(direct.losses[step], staged.losses[step], 1e-5);
    }
  });
}

// Each rank's gradients are rounded to bf16 once: the loss changes by far less than 2^-8.
TEST(DeviceTraining, Bf16OnTheWire) {
  for_each_device([&](Device device) {
    const Outcome f32 = train({.device = device});
    const Outcome bf16 = train({.device = device, .wire = DType::kBf16});
    EXPECT_EQ(test_world().size() > 1, f32.weights != bf16.weights);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(f32.losses[step], bf16.losses[step], 0x1p-8);
    }
  });
}

TEST(DeviceTraining, EightBitsOnTheWire) {
  for_each_device([&](Device device) {
    const Plan plan{.device = device, .wire = DType::kI8};
    const Outcome outcome = train(plan);
    EXPECT_EQ(test_world().size() > 1, train({.device = device}).weights != outcome.weights);
    EXPECT_EQ(train(plan), outcome);
  });
}

// Some ranks have no target and others have few: every target must have the same weight.
TEST(DeviceTraining, UnequalTargetsGiveTheLossOfOneProcess) {
  for_each_device([&](Device device) {
    const Outcome alone = train({.device = device, .alone = true, .uneven = true});
    const Outcome all_targets = train({.device = device, .alone = true});
    EXPECT_GT(std::abs(alone.losses[0] - all_targets.losses[0]), 1e-3);
    for (int64_t micro_batch : {0, 1}) {
      const Outcome together =
          train({.device = device, .micro_batch = micro_batch, .uneven = true});
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(together.losses[step], alone.losses[step], 1e-6 * alone.losses[step]);
      }
    }
  });
}

}  // namespace
}  // namespace tandem::testing

// Whole training steps on every device, in every precision, over 1 to 4 ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/device_job.h"
#include "tests/harness.h"
#include "tests/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kSteps = 4;

struct Outcome {
  std::vector<double> losses;   // mean of the global batch, by step
  std::vector<double> weights;  // all masters
  int64_t skipped = 0;
};

Outcome train(const Plan& plan) {
  Job run(plan);
  Outcome outcome;
  std::vector<StepRecord::Copy> copies;
  for (int step = 0; step < kSteps; ++step) {
    run.step(step);
    copies.push_back(run.record());
    if (step > 0) {
      outcome.losses.push_back(run.loss_of(copies[step - 1]));
    }
  }
  outcome.losses.push_back(run.loss_of(copies.back()));
  outcome.skipped = copies.back().step_state().skipped;
  outcome.weights = run.weights();
  return outcome;
}

// An error of u = 2^-8 (bf16) or 2^-11 (fp16) of each of some thirty values on the way to a
// target's loss, of either sign, is sqrt(30) * u of a logit of size one. Over the targets of a
// batch they cancel further, which leaves room for what four steps of training make of them.
double band(DType dtype) {
  return dtype == DType::kF32 ? 1e-4 : std::sqrt(30.0) * (dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11);
}

class DeviceTraining : public ::testing::TestWithParam<const char*> {};

// Every device and precision follows the curve of the CPU in f32.
TEST_P(DeviceTraining, FollowsTheCurve) {
  const Outcome expected = train({.model = GetParam()});
  for_each_device([&](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      SCOPED_TRACE(name_of(dtype));
      const Outcome actual = train({.model = GetParam(), .device = device, .dtype = dtype});
      EXPECT_EQ(actual.skipped, 0);
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(actual.losses[step], expected.losses[step], band(dtype)) << "step " << step;
      }
    }
  });
}

TEST_P(DeviceTraining, RecomputationChangesNoBit) {
  for_each_device([&](Device device) {
    const DType dtype = device == Device::kCpu ? DType::kBf16 : DType::kF32;
    const Outcome kept = train({.model = GetParam(), .device = device, .dtype = dtype});
    const Outcome again =
        train({.model = GetParam(), .device = device, .dtype = dtype, .recompute = true});
    EXPECT_EQ(kept.losses, again.losses);
    EXPECT_EQ(kept.weights, again.weights);
  });
}

TEST_P(DeviceTraining, RunsTwiceWithTheSameBits) {
  for_each_device([&](Device device) {
    const Plan plan{.model = GetParam(), .device = device, .dtype = DType::kFp16};
    EXPECT_EQ(train(plan).weights, train(plan).weights);
  });
}

// Half of the gradient sums are in another order: f32 rounding, amplified by four steps of
// training.
TEST_P(DeviceTraining, AccumulationKeepsTheCurve) {
  if (std::string(GetParam()) == "resnet" || kGlobalBatch / test_world().size() % 2 != 0) {
    GTEST_SKIP() << "batch statistics belong to the micro-batch";
  }
  for_each_device([&](Device device) {
    const Outcome whole = train({.model = GetParam(), .device = device});
    const Outcome halves = train({.model = GetParam(), .device = device, .accumulation = 2});
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(whole.losses[step], halves.losses[step], 1e-5) << "step " << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceTraining,
                         ::testing::Values("gpt", "llama", "resnet", "mlp"));

// Gradients through MPI have the bits of a ring, those through NCCL may be added in another order.
TEST(DeviceTraining, StagedThroughTheHost) {
  for_each_device([&](Device device) {
    const Outcome direct = train({.device = device});
    const Outcome staged = train({.device = device, .staged = true});
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(direct.losses[step], staged.losses[step], 1e-5);
    }
  });
}

// Gradients that are rounded to bf16 once for each rank: the loss moves by far less than 2^-8.
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

// Overflows on one rank: all ranks skip the same steps and halve the scale; training goes on.
TEST(DeviceTraining, RecoversFromOverflow) {
  for_each_device([&](Device device) {
    Job run({.device = device, .dtype = DType::kFp16});
    const int last = test_world().size() - 1;
    std::vector<float> scales;
    std::vector<double> before, after;
    for (int step = 0; step < 6; ++step) {
      const bool poison = (step == 1 || step == 2) && test_world().rank() == last;
      if (step == 1) {
        before = run.weights();
      }
      run.step(step, poison);
      if (step == 2) {
        after = run.weights();
      }
      const StepRecord::Copy copy = run.record();
      run.loss_of(copy);
      scales.push_back(copy.step_state().loss_scale);
    }
    EXPECT_EQ(scales, (std::vector<float>{65536, 32768, 16384, 16384, 16384, 16384}));
    EXPECT_EQ(before, after) << "a skipped step changes nothing";
    EXPECT_NE(after, run.weights());
  });
}

}  // namespace
}  // namespace tandem::testing

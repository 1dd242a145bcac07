// Rows of classes that are padded on a GPU (src/autograd/parameter.h): whole training steps, over 1
// to 4 ranks.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kSteps = 4;

void expect_zero(Job& job) {
  const std::vector<double> padding = job.padding();
  const std::vector<double> size = {static_cast<double>(padding.size())};
  EXPECT_GT(test_world().control().sum(size)[0], 0);
  EXPECT_EQ(std::ranges::count(padding, 0.0), std::ssize(padding));
}

// Padding adds zeros to sums. A library may choose other orders of summation for other sizes of a
// product, and the gradient norm is added in other groups. Tolerance: f32 rounding, amplified by
// four steps of training, as for accumulation (test_device_training.cpp). A 16-bit number may then
// be rounded to its other neighbour, 2^-8 or 2^-11 of its size away; a mean over 12 targets or more
// with some 30 such numbers on the way to each has sqrt(30 / 12) of that.
double tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-5 : 1.6 * (dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11);
}

void expect_same_training(Plan plan) {
  SCOPED_TRACE(str(plan.model, " of ", plan.classes, " classes, ", name_of(plan.dtype), ", stage ",
                   plan.zero));
  const Outcome padded = train(plan);
  plan.padded = false;
  const Outcome plain = train(plan);
  EXPECT_EQ(padded.weights.size(), plain.weights.size());
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(padded.losses[step], plain.losses[step], tolerance(plan.dtype)) << "step " << step;
    EXPECT_NEAR(padded.norms[step], plain.norms[step], tolerance(plan.dtype) * plain.norms[0]);
  }
}

TEST(Padding, TrainsLikeUnpaddedRows) {
  for_each_device([](Device device) {
    for (const char* model : {"gpt", "llama", "mlp"}) {
      for (DType dtype : {DType::kF32, DType::kBf16}) {
        expect_same_training({.model = model, .device = device, .dtype = dtype});
      }
    }
    expect_same_training({.model = "resnet", .device = device, .dtype = DType::kFp16});
  });
}

TEST(Padding, TrainsLikeUnpaddedRowsInEveryStage) {
  for_each_device([](Device device) {
    for (int zero : {1, 2, 3}) {
      for (const char* model : {"gpt", "llama"}) {
        expect_same_training({.model = model,
                              .device = device,
                              .zero = zero,
                              .micro_batch = small_micro_batch(),
                              .classes = 65});
      }
    }
  });
}

// Sizes around those where padding changes.
TEST(Padding, TrainsLikeUnpaddedRowsOfAnySize) {
  for_each_device([](Device device) {
    for (int64_t classes : {5, 8, 65, 1023, 1024, 1025}) {
      expect_same_training({.device = device, .classes = classes});
    }
  });
}

// Also where weights decay, a micro-batch adds to the gradient of another, gradients are exact, and
// a step is skipped because its gradients overflow.
TEST(Padding, StaysZero) {
  for_each_device([](Device device) {
    for (const char* model : {"gpt", "mlp"}) {
      for (int zero : {0, 1, 2, 3}) {
        for (const bool exact : {false, true}) {
          SCOPED_TRACE(str(model, ", stage ", zero, exact ? ", exact" : ""));
          Job job({.model = model,
                   .device = device,
                   .dtype = DType::kFp16,
                   .zero = zero,
                   .exact = exact,
                   .micro_batch = small_micro_batch()});
          for (int step = 0; step < 3; ++step) {
            job.step(step, step == 1);
          }
          const StepRecord::Copy last = job.record();
          EXPECT_GT(job.loss_of(last), 0);
          EXPECT_EQ(last.step_state().skipped, 1);
          expect_zero(job);
        }
      }
    }
  });
}

}  // namespace
}  // namespace tandem::testing

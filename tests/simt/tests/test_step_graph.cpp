// What a step that is one CUDA graph asks of the device (tests/support/mpi_main.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/device/graph.h"
#include "tests/simt/simt.h"
#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

TEST(LaunchedStep, IsOneCallBesideNumbersAndResults) {
  Plan plan{.device = Device::kCuda, .graph = true};
  for (plan.zero = 0; plan.zero < 4; ++plan.zero) {
    plan.micro_batch = plan.zero % 2 == 0 ? 0 : small_micro_batch();
    Job job(plan);
    for (int64_t number = 0; number < 5; ++number) {
      simt::counters() = {};
      job.step(number);
      job.take_timeline();
      if (number >= 2) {
        EXPECT_EQ(simt::counters().graph_launches, 1);
        // One call sends the numbers, three copy results and stamps, one marks the end.
        EXPECT_EQ(simt::counters().enqueued, 5);
        EXPECT_EQ(simt::counters().launches, 0);
        EXPECT_EQ(simt::counters().host_syncs, 0);
        EXPECT_EQ(simt::counters().device_allocations, 0);
      }
      job.stream().synchronize();
      EXPECT_EQ(simt::counters().device_allocations == 0, number > 0) << number;
    }
  }
}

TEST(LaunchedStep, NothingOutlivesIt) {
  Job job({.device = Device::kCuda, .graph = true, .alone = true});
  job.step(0);
  Memory scratch = job.memory().scratch();
  const Tensor left = Tensor::empty(scratch, {100}, DType::kF32, MemoryClass::kStaging);
  try {
    job.step(1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("between steps there is staging 448 B"));
  }
}

TEST(LaunchedStep, ItsInputStaysWhereItIs) {
  Job job({.device = Device::kCuda, .graph = true, .alone = true});
  job.step(0);
  job.step(1);
  job.move_input();
  EXPECT_THROW(job.step(2), Error);
}

TEST(LaunchedStep, TakesNoNewMemoryWhileItIsCaptured) {
  Job job({.device = Device::kCuda, .alone = true});
  Memory scratch = job.memory().scratch();
  try {
    const Graph graph(job.stream(), [&] {
      Tensor::empty(scratch, {int64_t{1} << 20}, DType::kF32, MemoryClass::kActivations);
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("captured takes new memory: 4.0 MiB for activations"));
  }
}

}  // namespace
}  // namespace tandem::testing

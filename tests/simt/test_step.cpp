// What a training step asks of the GPU and of the host, over 1 to 4 ranks (tests/mpi_main.cpp). The
// memory pool keeps its blocks: TANDEM_MEMORY_CACHE is not 0.
#include <gtest/gtest.h>

#include "tests/device_job.h"
#include "tests/mpi_world.h"
#include "tests/simt/simt.h"

namespace tandem::testing {
namespace {

struct Cost {
  simt::Counters enqueued;  // when the host is done
  simt::Counters finished;  // when the device is, the host having waited for it
};

Cost cost_of_step(Job& job, int64_t number, StepRecord::Copy& record) {
  simt::counters() = {};
  job.step(number);
  record = job.record();
  Cost cost{.enqueued = simt::counters(), .finished = {}};
  job.stream().synchronize();
  cost.finished = simt::counters();
  return cost;
}

class Step : public ::testing::TestWithParam<const char*> {};

void check_steps(const Plan& plan) {
  SCOPED_TRACE(name_of(plan.dtype));
  Job job(plan);
  StepRecord::Copy record;
  cost_of_step(job, 0, record);
  const Cost expected = cost_of_step(job, 1, record);
  EXPECT_GT(expected.finished.launches, 0);
  EXPECT_GT(expected.finished.sectors_read, 0);
  EXPECT_GT(expected.finished.sectors_written, 0);
  for (int64_t number = 2; number < 5; ++number) {
    const Cost cost = cost_of_step(job, number, record);
    EXPECT_EQ(cost.enqueued.host_syncs, 0);
    EXPECT_EQ(cost.finished.device_allocations, 0);
    EXPECT_EQ(cost.finished.launches, expected.finished.launches);
    EXPECT_EQ(cost.finished.sectors_read, expected.finished.sectors_read);
    EXPECT_EQ(cost.finished.sectors_written, expected.finished.sectors_written);
  }
}

// The first two steps fill the pool: the second one needs memory for a record beside the first's.
TEST_P(Step, NeverWaitsAndAllocatesNothing) {
  const int64_t accumulation = test_world().size() == 4 ? 3 : 2;
  check_steps({.model = GetParam(), .device = Device::kCuda, .accumulation = accumulation});
  check_steps({.model = GetParam(),
               .device = Device::kCuda,
               .dtype = DType::kFp16,
               .recompute = true,
               .accumulation = accumulation});
}

INSTANTIATE_TEST_SUITE_P(Models, Step, ::testing::Values("gpt", "llama", "resnet", "mlp"));

}  // namespace
}  // namespace tandem::testing

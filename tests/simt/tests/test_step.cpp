// How a training step uses the GPU and the host, over 1 to 4 ranks (tests/support/mpi_main.cpp).
// The memory pool keeps its blocks: TANDEM_MEMORY_CACHE is not 0.
#include <gtest/gtest.h>

#include <map>

#include "src/product/measure.h"
#include "tests/simt/libraries/cublaslt.h"
#include "tests/simt/simt.h"
#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

struct Cost {
  simt::Counters enqueued;  // when the host has enqueued the step
  simt::Counters finished;  // when the host has waited for the device
};

Cost cost_of_step(Job& job, int64_t number, StepRecord::Copy& record) {
  simt::counters() = {};
  job.step(number);
  record = job.record();
  job.take_timeline();
  Cost cost{.enqueued = simt::counters(), .finished = {}};
  job.stream().synchronize();
  cost.finished = simt::counters();
  return cost;
}

void check_steps(const Plan& plan) {
  SCOPED_TRACE(str(plan.model, ", stage ", plan.zero, ", ", name_of(plan.dtype)));
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
    // A step of gpt records dozens of events, which are used again. Where a stream is later than in
    // the steps before, a few more may be held at once.
    EXPECT_LE(cost.finished.events, 4);
    EXPECT_EQ(cost.finished.launches, expected.finished.launches);
    EXPECT_EQ(cost.finished.sectors_read, expected.finished.sectors_read);
    EXPECT_EQ(cost.finished.sectors_written, expected.finished.sectors_written);
  }
}

// The first two steps fill the pool: the second step needs memory for a record while the first
// step's record is still alive.
TEST(Step, NeverWaitsAndAllocatesNothing) {
  for (const char* model : {"gpt", "llama", "resnet", "mlp"}) {
    Plan plan{.model = model, .device = Device::kCuda, .micro_batch = small_micro_batch()};
    check_steps(plan);
    plan.dtype = DType::kFp16;
    plan.recompute = true;
    check_steps(plan);
  }
}

// Gathered blocks and gradients that wait to be reduced use the same memory again and again.
TEST(Step, NeverWaitsAndAllocatesNothingWhereStateIsSharded) {
  Plan plan{.device = Device::kCuda, .micro_batch = small_micro_batch()};
  for (plan.zero = 1; plan.zero < 4; ++plan.zero) {
    check_steps(plan);
  }
  plan.optimizer = "muon";
  for (plan.zero = 0; plan.zero < 4; ++plan.zero) {
    check_steps(plan);
  }
  plan.optimizer = "adamw";
  plan.zero = 3;
  plan.model = "resnet";
  check_steps(plan);
  plan.model = "mlp";
  plan.dtype = plan.wire = DType::kBf16;
  plan.overlap = false;
  check_steps(plan);
}

// What train.offload changes in a step.
struct Moved {
  int64_t counted = 0, to_device = 0, to_host = 0;  // bytes
  int64_t peak = 0;  // without the optimizer's table of shards, which one kernel for all needs
  int64_t parameters = 0, longest = 0;  // elements, padded: of the model, of a shard
};

Moved moved_in_a_step(const Plan& plan) {
  Job job(plan);
  StepRecord::Copy record;
  cost_of_step(job, 0, record);
  const int64_t before = job.training().offloaded_bytes();
  const simt::Counters counters = cost_of_step(job, 1, record).finished;
  const Memory& memory = job.memory();
  Moved moved{.counted = job.training().offloaded_bytes() - before,
              .to_device = counters.bytes_to_device,
              .to_host = counters.bytes_to_host,
              .peak = memory.total().peak_bytes - memory.use(MemoryClass::kWorkspace).peak_bytes};
  const ModelLayout& layout = job.training().store().layout;
  for (int64_t i = 0; i < layout.buckets(); ++i) {
    moved.parameters += layout.bucket(i).range.count();
  }
  for (const Shard& shard : job.training().store().shards.all()) {
    moved.longest = std::max(moved.longest, shard.value.elements());
  }
  return moved;
}

// Masters and two moments, in f32 the moments alone: of this rank's share of the parameters. On the
// device there are three windows instead.
TEST(Step, OffloadMovesItsShareOfTheStateEachWay) {
  if (test_world().size() == 1) {
    GTEST_SKIP() << "too slow with device memory closed to the host, as on one rank";
  }
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int zero : {0, 1, 3}) {
      SCOPED_TRACE(str(name_of(dtype), ", stage ", zero));
      Plan plan{.device = Device::kCuda, .dtype = dtype, .zero = zero};
      const Moved none = moved_in_a_step(plan);
      plan.offload_run = 256;
      const Moved offloaded = moved_in_a_step(plan);
      const int64_t element = dtype == DType::kF32 ? 8 : 12;
      const int64_t shards = zero == 0 ? 1 : test_world().size();
      const int64_t bytes = element * none.parameters / shards;
      EXPECT_EQ(none.counted, 0);
      EXPECT_EQ(offloaded.counted, bytes);
      EXPECT_EQ(offloaded.to_device - none.to_device, bytes);
      EXPECT_EQ(offloaded.to_host - none.to_host, bytes);
      EXPECT_EQ(none.peak - offloaded.peak, bytes - 3 * element * offloaded.longest);
    }
  }
}

// Recomputed blocks keep the tokens and the inputs of six layers. The newest never leaves, and the
// one before it need not come back. These two are held at the head, whose many logits make the
// peak. With few logits the peak is where a layer is differentiated, and a third is held.
TEST(Step, InputsOfBlocksLeaveButForTheNewest) {
  if (test_world().size() == 1) {
    GTEST_SKIP() << "too slow with device memory closed to the host, as on one rank";
  }
  for (const bool many_logits : {false, true}) {
    Plan plan{.device = Device::kCuda,
              .dtype = DType::kBf16,
              .recompute = true,
              .layers = 6,
              .classes = many_logits ? 1000 : 0};
    const Moved none = moved_in_a_step(plan);
    plan.parks_inputs = true;
    const Moved parked = moved_in_a_step(plan);
    const int64_t positions = kGlobalBatch / test_world().size() * 5;
    const int64_t tokens = positions * 4, input = positions * 2 * plan.head_width * 2;
    EXPECT_EQ(parked.counted, tokens + 4 * input);
    EXPECT_EQ(parked.to_device - none.to_device, tokens + 4 * input);
    EXPECT_EQ(parked.to_host - none.to_host, tokens + 5 * input);
    const int64_t held = (input + 63) / 64 * 64;  // memory is aligned
    EXPECT_EQ(none.peak - parked.peak, (many_logits ? 4 : 3) * held);
  }
}

using Launches = std::vector<std::string>;

// The launches of the host in a step: before the first micro-step, and in each micro-step.
std::vector<Launches> launches_of_step(Job& job, int64_t number, double lr) {
  std::vector<Launches> parts(1);
  job.before_micro_step = [&] { parts.emplace_back(); };
  simt::launch_observer() = [&](const std::string& text) { parts.back().push_back(text); };
  job.step(number, false, lr);
  simt::launch_observer() = nullptr;
  job.before_micro_step = [] {};
  return parts;
}

// Two micro-steps of one kind (first, middle or last), of one step or of two, are the same launches
// with the same arguments, although learning rates, sample numbers and loss scales differ. When
// gradients are sharded, their messages outlive a micro-step and alternate between two pieces of
// memory. Then only every other micro-step is the same, which is not tested.
void check_launches(const Plan& plan) {
  SCOPED_TRACE(str(plan.model, ", stage ", plan.zero, ", ", name_of(plan.dtype)));
  Job job(plan);
  StepRecord::Copy record;
  const auto read = [&] {
    StepRecord::Copy next = job.record();
    job.stream().synchronize();  // only now may the previous record be freed
    record = std::move(next);
  };
  for (int64_t number = 0; number < 3; ++number) {  // the pool fills
    job.step(number);
    read();
  }
  const std::vector<Launches> one = launches_of_step(job, 3, 0.25);
  read();
  const std::vector<Launches> other = launches_of_step(job, 4, 0.125);
  read();
  ASSERT_GE(one.size(), 1u + 3u);
  ASSERT_GT(one[2].size(), 10u);
  EXPECT_EQ(one, other);
  for (size_t middle = 3; middle + 1 < one.size(); ++middle) {
    EXPECT_EQ(one[2], one[middle]) << "micro-step " << middle - 1;
  }
}

TEST(Step, MicroStepsOfAKindAreTheSameLaunches) {
  for (const char* model : {"gpt", "llama", "resnet", "mlp"}) {
    check_launches({.model = model, .device = Device::kCuda, .micro_batch = 1});
  }
  for (int zero : {0, 1}) {
    check_launches({.device = Device::kCuda,
                    .dtype = DType::kFp16,
                    .zero = zero,
                    .recompute = true,
                    .micro_batch = 1});
  }
}

// GPT-2 with twelve layers, one micro-step on one rank. Each layer has 12 products and 12 other
// launches: 2 norms, attention, GELU; their 2 + 3 + 1 in backward; the sum over rows of attention's
// gradient; and one that finishes all sums over rows. About 30 launches serve the whole model. Its
// small buckets make more shards than the 88 of GPT-2 124M, and these cost no launches.
// Where choices fuse GELU and its slope, the forward pass of GELU is gone, and that of the slope
// is one that sums over rows.
TEST(Step, TwelveLayersTakeAtMost350Launches) {
  Job job(
      {.device = Device::kCuda, .dtype = DType::kBf16, .layers = 12, .dropout = 0, .alone = true});
  StepRecord::Copy record;
  const ChoiceRecorder recorder;
  cost_of_step(job, 0, record);
  for (const bool fused : {false, true}) {
    if (fused) {
      simt::cublas_lt().seconds = [](int, cublasLtEpilogue_t epilogue) {
        return epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 100 : 0;
      };
      use_choices(std::make_shared<const KernelChoices>(
          measure_products(job.stream(), recorder.noted().products, [](const std::string&) {})));
      simt::cublas_lt() = {};
    }
    cost_of_step(job, 1, record);
    std::map<std::string, int> by_kernel;
    int64_t all = 0;
    for (const Launches& part : launches_of_step(job, 2, 0.25)) {
      for (const std::string& text : part) {
        ++by_kernel[text.substr(0, text.find_first_of("<( "))];
        ++all;
      }
    }
    EXPECT_LE(all, fused ? 340 : 350) << ::testing::PrintToString(by_kernel);
    EXPECT_EQ(by_kernel["cublasLtMatmul"], 12 * 12 + 3);
    EXPECT_EQ(by_kernel["sum_rows_kernel"], fused ? 24 : 12);
    EXPECT_EQ(by_kernel["add_partial_rows_kernel"], 12 + 1);  // the head has a norm
  }
  use_choices(nullptr);
}

// A recomputed block takes sums over rows with the norm after it, as a block that is not does.
TEST(Step, RecomputationChangesNoBitOfSumsOverRows) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    Plan plan{.device = Device::kCuda, .dtype = dtype, .dropout = 0};
    const Outcome kept = train(plan, 2);
    plan.recompute = true;
    EXPECT_EQ(train(plan, 2), kept);
  }
}

// Collectives over MPI go through page-locked host memory. The host waits once for each copy: one
// to the host and one back.
TEST(Staging, CopiesPinnedMemoryAndWaitsForEachCopyOnce) {
  Collectives& collectives = test_world().collectives();
  const int size = collectives.size();
  if (size == 1) {
    GTEST_SKIP() << "one rank sends nothing";
  }
  const auto tensor = [](int64_t n) {
    return to_device(random_tensor({n}, DType::kF32, 1), Device::kCuda);
  };
  const Tensor part = tensor(1000), all = tensor(1000 * size), other = tensor(1000 * size);
  const auto check = [&](const char* name, const std::function<void()>& start) {
    SCOPED_TRACE(name);
    start();  // the first one makes the stream and the memory
    collectives.stream().synchronize();
    simt::counters() = {};
    start();
    collectives.stream().synchronize();
    EXPECT_EQ(simt::counters().pageable_copies, 0);
    EXPECT_EQ(simt::counters().host_syncs, 2);
  };
  check("all_reduce", [&] { collectives.all_reduce(all); });
  check("reduce_scatter", [&] { collectives.reduce_scatter(all, part); });
  check("all_gather", [&] { collectives.all_gather(part, all); });
  check("all_to_all", [&] { collectives.all_to_all(all, other); });
}

}  // namespace
}  // namespace tandem::testing

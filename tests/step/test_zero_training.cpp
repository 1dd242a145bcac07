// Whole training steps with sharded state and with exact sums, on every device, over 1 to 4 ranks:
// what must not change a bit. The reference is the same job run by 1 rank.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kSteps = 2;

int stages() { return test_world().size() == 1 ? 1 : 4; }  // 1 rank shards nothing

// Runs body(device, stage).
void for_each_stage(const std::function<void(Device, int)>& body) {
  for_each_device([&](Device device) {
    for (int zero = 0; zero < stages(); ++zero) {
      SCOPED_TRACE(zero);
      body(device, zero);
    }
  });
}

// Initial weights depend on neither the number of ranks nor the stage.
TEST(ZeroTraining, InitialWeightsAreTheSameForEveryNumberOfRanks) {
  for_each_stage([](Device device, int zero) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      const std::vector<double> expected = Job({.device = device, .alone = true}).weights();
      EXPECT_EQ(Job({.device = device, .dtype = dtype, .zero = zero}).weights(), expected);
    }
  });
}

class ExactTraining : public ::testing::TestWithParam<const char*> {};

// Exact sums give the same bits on all ranks, for every number of ranks, and however the batch is
// divided into micro-steps. Dropout masks must be the same, too, because weights depend on them.
// Micro-batches have one sample: 12 of them on 1 rank, 6 each on 2 ranks, 4 on 3, 3 on 4.
TEST_P(ExactTraining, RanksStagesBucketsAndOverlapChangeNoBit) {
  for_each_device([&](Device device) {
    Plan plan{
        .model = GetParam(), .device = device, .exact = true, .micro_batch = 1, .alone = true};
    const bool is_slow = device == Device::kCuda && plan.model != "gpt";  // if it is emulated
    const Outcome expected = train(plan, kSteps);
    plan.alone = false;
    for (const auto& [zero, overlap, bucket_bytes] :
         {std::tuple(0, true, 2000), std::tuple(1, false, 200), std::tuple(2, true, 1 << 20),
          std::tuple(3, true, 2000), std::tuple(3, false, 200)}) {
      if (zero < stages() && (!is_slow || (zero == 3 && overlap))) {
        plan.zero = zero;
        plan.overlap = overlap;
        plan.bucket_bytes = bucket_bytes;
        EXPECT_EQ(train(plan, kSteps), expected) << "stage " << zero;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, ExactTraining,
                         ::testing::Values("gpt", "llama", "qwen", "lora", "resnet", "mlp"));

TEST(ZeroTraining, ExactMixedPrecisionIsTheSameOnAllRanks) {
  for_each_device([](Device device) {
    Plan plan{
        .device = device, .dtype = DType::kFp16, .exact = true, .micro_batch = 1, .alone = true};
    const Outcome expected = train(plan, kSteps);
    plan.alone = false;
    for (plan.zero = 1; plan.zero < stages(); plan.zero += 2) {
      EXPECT_EQ(train(plan, kSteps), expected) << "stage " << plan.zero;
    }
  });
}

// Two nodes of two ranks, with state sharded over all ranks or inside each node.
TEST(ZeroTraining, NodesChangeNoBitOfExactSums) {
  if (test_world().size() != 4) {
    GTEST_SKIP() << "four ranks make two nodes of two";
  }
  for_each_device([](Device device) {
    Plan plan{.device = device, .exact = true, .micro_batch = 1, .alone = true};
    const Outcome expected = train(plan, kSteps);
    plan.alone = false;
    plan.node_size = 2;
    for (const Sharing sharing : {Sharing::kWorld, Sharing::kNode}) {
      plan.sharing = sharing;
      for (plan.zero = 0; plan.zero < stages(); ++plan.zero) {
        EXPECT_EQ(train(plan, kSteps), expected) << "stage " << plan.zero;
      }
    }
  });
}

// With 2 ranks and one micro-step each gradient sum has two addends, so stages cannot change its
// order; they change only the order of squares in the norm, because they cut buckets differently.
// With more ranks, results may differ by f32 rounding, amplified by two steps of training.
TEST(ZeroTraining, StagesTrainAlike) {
  for (const char* model : {"gpt", "resnet"}) {
    for_each_device([&](Device device) {
      Plan plan{.model = model, .device = device};
      const Outcome replicated = train(plan, kSteps);
      for (plan.zero = 1; plan.zero < stages(); ++plan.zero) {
        SCOPED_TRACE(str(model, ", stage ", plan.zero));
        const Outcome sharded = train(plan, kSteps);
        if (test_world().size() <= 2) {
          EXPECT_EQ(replicated.losses, sharded.losses);
          EXPECT_EQ(replicated.weights, sharded.weights);
          EXPECT_EQ(replicated.statistics, sharded.statistics);
        }
        for (size_t step = 0; step < kSteps; ++step) {
          EXPECT_NEAR(replicated.losses[step], sharded.losses[step], 1e-5);
          EXPECT_NEAR(replicated.norms[step], sharded.norms[step], 1e-4 * replicated.norms[step]);
        }
      }
    });
  }
}

// Recomputation changes no bit, and neither does running the same job again.
TEST(ZeroTraining, RecomputationAndRepetitionChangeNoBit) {
  for_each_stage([&](Device device, int zero) {
    Plan plan{.device = device, .zero = zero, .micro_batch = small_micro_batch()};
    const Outcome kept = train(plan, kSteps);
    plan.recompute = true;
    EXPECT_EQ(train(plan, kSteps), kept);
    plan.model = "resnet";
    if (zero == 3) {
      const Outcome again = train(plan, kSteps);
      EXPECT_EQ(train(plan, kSteps), again);
      plan.recompute = false;
      EXPECT_EQ(train(plan, kSteps), again);
    }
  });
}

// When gradients overflow on one rank, all ranks skip the same steps and halve the loss scale, and
// training goes on.
TEST(ZeroTraining, RecoversFromOverflow) {
  for (const bool exact : {false, true}) {
    for_each_stage([&](Device device, int zero) {
      Job job({.model = exact ? "mlp" : "gpt",
               .device = device,
               .dtype = DType::kFp16,
               .zero = zero,
               .exact = exact});
      const int last = test_world().size() - 1;
      std::vector<float> scales;
      std::vector<double> before, after;
      for (int step = 0; step < 6; ++step) {
        const bool poison = (step == 1 || step == 2) && test_world().rank() == last;
        if (step == 1) {
          before = job.weights();
        }
        job.step(step, poison);
        if (step == 2) {
          after = job.weights();
        }
        const StepRecord::Copy copy = job.record();
        job.loss_of(copy);
        scales.push_back(copy.step_state().loss_scale);
      }
      EXPECT_EQ(scales, (std::vector<float>{65536, 32768, 16384, 16384, 16384, 16384}));
      EXPECT_EQ(before, after) << "a skipped step changes nothing";
      EXPECT_NE(after, job.weights());
    });
  }
}

}  // namespace
}  // namespace tandem::testing

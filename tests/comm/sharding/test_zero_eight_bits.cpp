// Training whose gradients and values are sent in eight bits: what it keeps exact, and how far sums
// and values may be off. Runs in jobs of 1 to 4 ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/comm/sharding/zero_job.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

Ranks world() { return test_ranks(); }

ZeroPlan plan_of(int stage, DType values = DType::kF32) {
  return {.store = {.bucket_bytes = 4 * 2000,
                    .zero = stage,
                    .dtype = values,
                    .wire_dtype = DType::kI8,
                    .gather_int8 = stage > 0},
          .micro_steps = 2};
}

double largest(const std::vector<double>& numbers) {
  double most = 0;
  for (const double number : numbers) {
    most = std::max(most, std::fabs(number));
  }
  return most;
}

// What layers read in a step's forward pass. Collective: the same on all ranks.
std::vector<double> read_in_a_step(ZeroJob& job) {
  std::vector<double> read;
  job.watch = [&](BlockId block, Pass pass, bool acquired) {
    if (acquired && pass == Pass::kForward) {
      job.read(block, read);
    }
  };
  job.step();
  job.watch = {};
  const std::vector<double> sum = world().control.sum(read);
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(sum[i], read[i] * world().size()) << "element " << i;
  }
  return read;
}

// The owner, too, computes with the rounded values, beside masters that are not rounded.
TEST(ZeroEightBits, AllRanksReadTheSameRoundedValues) {
  for (const int stage : kStages) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(str("stage ", stage, ", ", name_of(dtype)));
      ZeroJob job(world(), plan_of(stage, dtype));
      for (int step = 0; step < 4; ++step) {
        const std::vector<double> masters = job.weights();
        const std::vector<double> read = read_in_a_step(job);
        // A scale is at most a block's largest / 127, but for its rounding; bf16 rounds before and
        // after by 2^-9 of the number.
        const double scale = stage > 0 ? largest(masters) / 127 * (1 + 0x1p-14) : 0;
        const double own = dtype == DType::kBf16 ? 2 * 0x1p-9 * largest(masters) * 1.01 : 0;
        for (size_t i = 0; i < read.size(); ++i) {
          ASSERT_NEAR(read[i], masters[i], scale / 2 + own) << "element " << i;
        }
        if (stage > 0 && world().size() > 1) {
          EXPECT_NE(read, masters);
        }
      }
    }
  }
}

TEST(ZeroEightBits, SumsAreWithinAScaleOfEachMessage) {
  for (const int stage : kStages) {
    ZeroPlan plan = plan_of(stage);
    plan.store.gather_int8 = false;
    ZeroJob rounded(world(), plan);
    plan.store.wire_dtype = DType::kF32;
    ZeroJob plain(world(), plan);
    double addends = 0;  // the largest magnitudes of all messages
    {
      OneRank self;
      ZeroPlan alone = plan;
      alone.micro_steps = static_cast<int>(rounded.leaves());
      ZeroJob job(self, alone);
      for (int64_t leaf = 0; leaf < rounded.leaves(); ++leaf) {
        addends += largest(job.leaf_gradient(leaf));
      }
    }
    rounded.gradients();
    plain.gradients();
    const std::vector<double> sums = rounded.summed_gradients();
    const std::vector<double> wanted = plain.summed_gradients();
    // Stage 0 rounds the sum once more. 2^-10: the rounding of scales and of f32.
    const double bound = addends / 127 * (stage == 0 ? 2 : 1) * (1 + 0x1p-10);
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_NEAR(sums[i], wanted[i], bound) << "stage " << stage << ", element " << i;
    }
    EXPECT_EQ(sums == wanted, world().size() == 1) << "stage " << stage;
  }
}

// The gradients themselves do not depend on the seed, because a chain has no dropout.
TEST(ZeroEightBits, GradientsAreRoundedAtRandom) {
  for (const int stage : kStages) {
    std::vector<std::vector<double>> sums;
    for (const uint64_t seed : {1, 2, 1}) {
      ZeroPlan plan = plan_of(stage);
      plan.links = {{{1000}, {40, false}}, {{3000}}};
      plan.seed = seed;
      ZeroJob job(world(), plan);
      job.gradients();
      sums.push_back(job.summed_gradients());
    }
    EXPECT_EQ(sums[0], sums[2]) << "stage " << stage;
    EXPECT_EQ(sums[0] != sums[1], world().size() > 1) << "stage " << stage;
  }
}

TEST(ZeroEightBits, TheSameStepsHaveTheSameBits) {
  for (const int stage : kStages) {
    ZeroJob one(world(), plan_of(stage)), other(world(), plan_of(stage));
    one.train(3);
    other.train(3);
    EXPECT_EQ(one.weights(), other.weights()) << "stage " << stage;
    EXPECT_EQ(one.grad_norm(), other.grad_norm());
  }
}

// A gradient that is not finite on one rank, in one of its blocks, refuses the step on all.
TEST(ZeroEightBits, ANumberThatIsNotFiniteReachesTheNorm) {
  for (const int stage : kStages) {
    for (const double odd : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      ZeroJob job(world(), plan_of(stage));
      const Parameter* last = job.store().layout.parameters().back();
      bool is_written = world().rank() < world().size() - 1;
      job.before_final = [&] {  // once: afterwards the gradient may be on its way
        if (!is_written && last->grad && last->grad_written) {
          last->grad.data<float>()[0] = static_cast<float>(odd);
          is_written = true;
        }
      };
      job.gradients();
      EXPECT_TRUE(is_written);
      EXPECT_FALSE(std::isfinite(job.squared_norm()));
    }
  }
}

}  // namespace
}  // namespace tandem::testing

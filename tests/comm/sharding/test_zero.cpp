// Trained weights do not depend on the ZeRO stage. Runs on every rank of a job of 1 to 4 ranks
// (tests/support/mpi_main.cpp). tests/README.md explains the ids in the names (Z1, C1, ...).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/comm/sharding/zero_job.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

Ranks world() { return test_ranks(); }

// Sizes that no number of ranks divides, with and without weight decay; no two blocks are alike.
const Links kOdd = {{{103}, {11, false}}, {{211}, {7, false}, {5}}, {{2, false}}, {{209}, {13}}};

// Elements of the largest block of each model. With buckets of exactly that size, no block is split
// and no two neighbours share a bucket.
constexpr int64_t kOddBlock = 211 + 7 + 5, kGptBlock = 8 * 24 + 24 + 64 + 8 + 32 + 512 + 32 + 8;

struct Outcome {
  std::vector<double> weights;
  std::string layout;
  double grad_norm;
};

Outcome train(ZeroPlan plan, int stage, int steps) {
  plan.store.zero = stage;
  ZeroJob job(world(), plan);
  job.train(steps);
  return {job.weights(), job.store().layout.flat().text(), job.grad_norm()};
}

// A plan for 1 rank that computes the leaves of all ranks.
ZeroPlan with_all_leaves(ZeroPlan plan) {
  plan.micro_steps *= world().size();
  plan.store.zero = 0;
  return plan;
}

TEST(Zero, Z1StagesAgreeBitForBitWhereBucketsDo) {
  for (ZeroPlan plan : {ZeroPlan{}, ZeroPlan{.links = kOdd, .optimizer = "sgd"}}) {
    plan.store.bucket_bytes = 4 * (plan.links.empty() ? kGptBlock : kOddBlock);
    const Outcome reference = train(plan, 0, 50);
    EXPECT_GT(reference.grad_norm, plan.clip_norm) << "clipping is on";
    for (int stage : {1, 2, 3}) {
      SCOPED_TRACE(str(plan.optimizer, ", stage ", stage));
      const Outcome outcome = train(plan, stage, 50);
      ASSERT_EQ(outcome.layout, reference.layout) << "the premise";
      EXPECT_EQ(outcome.weights, reference.weights);
      EXPECT_EQ(outcome.grad_norm, reference.grad_norm);
    }
  }
}

// Stages 0 and 1 have the same buckets, whatever their size. Stages 2 and 3 have the same buckets
// if no blocks share one. Each pair of stages adds micro-steps in the same order.
TEST(Zero, Z1PairsOfStagesAgreeWithMicroSteps) {
  ZeroPlan plan{.links = kOdd, .store = {.bucket_bytes = 300}, .micro_steps = 2};
  EXPECT_EQ(train(plan, 0, 20).weights, train(plan, 1, 20).weights);
  plan.store.bucket_bytes = 4 * kOddBlock;
  EXPECT_EQ(train(plan, 2, 20).weights, train(plan, 3, 20).weights);
}

// Since a + b = b + a, the order of a ring of two ranks does not matter, so neither do buckets.
TEST(Zero, Z1TwoRanksAgreeWhateverTheBuckets) {
  if (world().size() > 2) {
    GTEST_SKIP() << "for at most two ranks";
  }
  const ZeroPlan plan{.links = kOdd, .store = {.bucket_bytes = 300}};
  const std::vector<double> reference = train(plan, 0, 20).weights;
  for (int stage : {1, 2, 3}) {
    EXPECT_EQ(train(plan, stage, 20).weights, reference) << "stage " << stage;
  }
}

// Otherwise stages add in different orders. A sum of n addends in f32, in any order, is off by at
// most (n - 1) u sum |addends| (Higham 2002, (4.4); u = 2^-24, up to O(u^2)). The reference is the
// sum in f64, so each stage must be within this bound of it.
TEST(Zero, Z1GradientsOfAllStagesWithinTheirRounding) {
  for (int micro_steps : {1, 3}) {
    ZeroPlan plan{.links = kOdd, .store = {.bucket_bytes = 300}, .micro_steps = micro_steps};
    OneRank self;
    ZeroJob alone(self, with_all_leaves(plan));
    std::vector<double> sum, magnitude;
    for (int64_t leaf = 0; leaf < alone.leaves(); ++leaf) {
      const std::vector<double> gradient = alone.leaf_gradient(leaf);
      sum.resize(gradient.size());
      magnitude.resize(gradient.size());
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += gradient[i];
        magnitude[i] += std::abs(gradient[i]);
      }
    }
    for (int stage : kStages) {
      plan.store.zero = stage;
      ZeroJob job(world(), plan);
      job.gradients();
      const std::vector<double> gradients = job.summed_gradients();
      int64_t outside = 0;
      double squares = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        const double band = static_cast<double>(alone.leaves() - 1) * 0x1p-24 * magnitude[i];
        outside += !(std::abs(gradients[i] - sum[i]) <= band * (1 + 1e-6));
        squares += sum[i] * sum[i];
      }
      EXPECT_EQ(outside, 0) << "stage " << stage << ", " << micro_steps << " micro-steps";
      EXPECT_NEAR(std::sqrt(job.squared_norm()), std::sqrt(squares), 1e-6 * std::sqrt(squares))
          << "C1: stage " << stage;
    }
  }
}

// With exact sums neither the stage, nor the buckets, nor the number of ranks matters. The
// reference has 1 rank.
TEST(Zero, Z1ExactSumsAgreeWithOneRank) {
  for (ZeroPlan plan :
       {ZeroPlan{.exact = true},
        ZeroPlan{.links = kOdd, .exact = true, .micro_steps = 2, .optimizer = "sgd"}}) {
    plan.store.bucket_bytes = plan.links.empty() ? 4 * 300 : 300;
    const int steps = plan.links.empty() ? 50 : 10;
    OneRank self;
    ZeroJob alone(self, with_all_leaves(plan));
    alone.train(steps);
    const std::vector<double> reference = alone.weights();
    for (int stage : kStages) {
      const Outcome outcome = train(plan, stage, steps);
      EXPECT_EQ(outcome.weights, reference) << plan.optimizer << ", stage " << stage;
      EXPECT_EQ(outcome.grad_norm, alone.grad_norm());
    }
  }
}

// Stage 0 is left out: it rounds the sum once more, to send it back.
TEST(Zero, Z1RoundedMessagesAgreeBetweenStages) {
  ZeroPlan plan{
      .links = kOdd,
      .store = {.bucket_bytes = 4 * kOddBlock, .dtype = DType::kBf16, .wire_dtype = DType::kBf16}};
  const std::vector<double> reference = train(plan, 1, 20).weights;
  EXPECT_EQ(train(plan, 2, 20).weights, reference);
  EXPECT_EQ(train(plan, 3, 20).weights, reference);
}

// With both betas 0, Adam's first moment is the gradient. So each element's state must be where its
// gradient is.
TEST(Zero, Z5FirstMomentIsTheGradientInEveryLayout) {
  ZeroPlan plan{.links = kOdd, .exact = true, .optimizer = "gradient", .clip_norm = 0};
  OneRank self;
  ZeroJob alone(self, with_all_leaves(plan));
  alone.step();
  const std::vector<double> reference = alone.summed_gradients();
  EXPECT_GT(std::ranges::count_if(reference, [](double g) { return g != 0; }),
            std::ssize(reference) * 9 / 10);
  for (int stage : kStages) {
    for (int64_t bucket_bytes : {4, 4 * 120, 1 << 20}) {
      SCOPED_TRACE(str("stage ", stage, ", buckets of ", bucket_bytes));
      plan.store.zero = stage;
      plan.store.bucket_bytes = bucket_bytes;
      ZeroJob job(world(), plan);
      job.step();
      EXPECT_EQ(job.state("m"), reference);
      EXPECT_EQ(job.summed_gradients(), reference);
    }
  }
}

// The norm adds the same numbers in the same order in all stages. So all ranks get the same bits
// and make the same decision.
TEST(Zero, C1NormsHaveTheSameBitsInAllStagesAndOnAllRanks) {
  for (bool exact : {false, true}) {
    ZeroPlan plan{.links = kOdd, .store = {.bucket_bytes = 4 * kOddBlock}, .exact = exact};
    std::vector<double> norms;
    for (int stage : kStages) {
      norms.push_back(train(plan, stage, 3).grad_norm);
    }
    EXPECT_EQ(norms, std::vector<double>(4, norms[0])) << "exact " << exact;
    EXPECT_EQ(world().control.sum(norms)[0], norms[0] * world().size());
  }
}

// In each forward pass, the layers on every rank read all master weights, rounded.
TEST(Zero, E2AllRanksReadTheSameWeightsInEachStep) {
  for (int stage : kStages) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(str("stage ", stage, ", ", name_of(dtype)));
      ZeroJob job(
          world(),
          {.links = kOdd,
           .store = {.bucket_bytes = 300, .zero = stage, .dtype = dtype, .wire_dtype = dtype}});
      std::vector<double> read;
      job.watch = [&](BlockId block, Pass pass, bool acquired) {
        if (acquired && pass == Pass::kForward) {
          job.read(block, read);
        }
      };
      for (int step = 0; step < 5; ++step) {
        std::vector<double> expected = job.weights();  // the same on all ranks
        if (dtype == DType::kBf16) {
          std::ranges::transform(expected, expected.begin(), [](double value) {
            return static_cast<float>(Bf16(static_cast<float>(value)));
          });
        }
        EXPECT_NE(read, expected) << "step " << step << " moved them";
        read.clear();
        job.step();
        EXPECT_EQ(read, expected) << "step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::testing

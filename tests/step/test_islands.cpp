// Islands that exchange what they moved (src/step/island_sync.h). Runs on every rank of a job of 1
// to 4 ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <memory>

#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

class IslandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_world().size() == 1) {
      GTEST_SKIP() << "one rank is no islands";
    }
  }

  // Each rank is an island, or with four ranks two are.
  std::vector<Plan> plans(Device device) const {
    const int size = test_world().size();
    Plan plan{.device = device, .islands = size, .exchange = IslandOptions{.every = 3}};
    std::vector<Plan> all = {plan};
    if (size == 4) {
      plan.islands = 2;
      for (const int zero : {1, 2, 3}) {
        plan.zero = zero;
        all.push_back(plan);
      }
    }
    return all;
  }
};

// Whether all ranks of the world pass the same numbers; with `apart` ranks an island, whether those
// do that have the same place on their islands.
bool are_alike(const std::vector<double>& numbers, size_t apart = 1) {
  std::string bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double));
  const std::vector<std::string> all = test_world().control().all_gather(bytes);
  for (size_t i = apart; i < all.size(); ++i) {
    if (all[i] != all[i - apart]) {
      return false;
    }
  }
  return true;
}

// The state of this rank's optimizer, by slot: moments and the outer momentum. Running statistics.
std::vector<double> states(Job& job) {
  std::vector<double> all = job.statistics();
  job.training().optimizer().visit([&](std::string_view, size_t, const Tensor& state) {
    const std::vector<double> values = values_of(state);
    all.insert(all.end(), values.begin(), values.end());
  });
  return all;
}

void run(Job& job, int first, int last, double lr = 0.01) {
  for (int step = first; step <= last; ++step) {
    job.step(step - 1, false, lr);
    job.training().islands()->end_step(step);
  }
}

// A job after the step after which the first exchange begins.
std::unique_ptr<Job> after_an_exchange(Plan plan, int64_t delay) {
  plan.exchange->delay = delay;
  auto job = std::make_unique<Job>(plan);
  run(*job, 1, 3);
  return job;
}

TEST_F(IslandsTest, AreAlikeWhereTheyMeetAndNowhereElse) {
  for_each_device([&](Device device) {
    for (Plan plan : plans(device)) {
      for (const DType wire : {DType::kF32, DType::kBf16, DType::kI8}) {
        for (const DType dtype : {DType::kF32, DType::kBf16}) {
          SCOPED_TRACE(str(plan.islands, " islands, stage ", plan.zero, ", ", name_of(wire), ", ",
                           name_of(dtype)));
          plan.wire = wire;
          plan.dtype = dtype;
          Job job(plan);
          run(job, 1, 2);
          EXPECT_FALSE(are_alike(job.weights()));
          run(job, 3, 3);
          EXPECT_TRUE(are_alike(job.weights()));
          run(job, 4, 4);
          EXPECT_FALSE(are_alike(job.weights()));
        }
      }
    }
  });
}

// Where one island has several ranks, each has its shard of the state: like its likes'.
TEST_F(IslandsTest, HaveOneStateOnceTheySettle) {
  for_each_device([&](Device device) {
    for (Plan plan : plans(device)) {
      const auto apart = static_cast<size_t>(test_world().size() / plan.islands);
      for (const char* model : {"gpt", "resnet"}) {
        for (const int64_t delay : {0, 2}) {
          SCOPED_TRACE(
              str(plan.islands, " islands, stage ", plan.zero, ", ", model, ", delay ", delay));
          plan.model = model;
          plan.exchange->delay = delay;
          Job job(plan);
          run(job, 1, 4);
          EXPECT_FALSE(are_alike(states(job), apart));
          job.training().islands()->settle(4);
          EXPECT_TRUE(are_alike(job.weights()));
          EXPECT_TRUE(are_alike(states(job), apart));
          run(job, 5, 5);
          EXPECT_FALSE(are_alike(states(job), apart));
        }
      }
    }
  });
}

// A full exchange right after a step is that step's own.
TEST_F(IslandsTest, SettleOnce) {
  Job one(plans(Device::kCpu)[0]), other(plans(Device::kCpu)[0]);
  for (Job* job : {&one, &other}) {
    run(*job, 1, 3);
    job->training().islands()->settle(3);
  }
  other.training().islands()->settle(3);
  EXPECT_EQ(one.weights(), other.weights());
  EXPECT_EQ(states(one), states(other));
  EXPECT_EQ(one.training().islands()->exchanged().payload(),
            other.training().islands()->exchanged().payload());
}

// Eight bits are left out, because their random numbers follow the parts.
TEST_F(IslandsTest, PartsOfAMessageChangeNoBit) {
  Plan plan = plans(Device::kCpu)[0];
  for (const DType wire : {DType::kF32, DType::kBf16}) {
    plan.wire = wire;
    plan.exchange->most_elements = int64_t{1} << 24;
    Job whole(plan);
    plan.exchange->most_elements = 512;
    Job parts(plan);
    for (Job* job : {&whole, &parts}) {
      run(*job, 1, 3);
    }
    EXPECT_EQ(parts.weights(), whole.weights());
  }
}

// The mean of what the islands moved, by hand.
TEST_F(IslandsTest, WithoutMomentumTheyGoOnFromTheirMean) {
  Plan plan = plans(Device::kCpu)[0];
  plan.exchange->outer = {.lr = 1, .momentum = 0};
  Job job(plan);
  const std::vector<double> start = job.weights();
  run(job, 1, 2);
  job.step(2);
  std::vector<double> mean = test_world().control().sum(job.weights());
  job.training().islands()->end_step(3);
  const std::vector<double> after = job.weights();
  double moved = 0;
  for (size_t i = 0; i < mean.size(); ++i) {
    mean[i] /= plan.islands;
    // Differences and their sum are rounded to 2^-24 of numbers below 4, up to 6 times.
    ASSERT_NEAR(after[i], mean[i], 6 * 4 * 0x1p-24);
    moved = std::max(moved, std::abs(mean[i] - start[i]));
  }
  EXPECT_GT(moved, 1e-3);
}

// While nothing moves, a delay changes when, not what.
TEST_F(IslandsTest, ADelayedExchangeTakesEffectLater) {
  for_each_device([&](Device device) {
    for (const Plan& plan : plans(device)) {
      SCOPED_TRACE(str(plan.islands, " islands, stage ", plan.zero));
      const auto prompt_job = after_an_exchange(plan, 0), late_job = after_an_exchange(plan, 2);
      Job &prompt = *prompt_job, &late = *late_job;
      const std::vector<double> before = late.weights();
      EXPECT_FALSE(are_alike(before));
      run(late, 4, 4, 0);
      EXPECT_EQ(late.weights(), before);
      run(late, 5, 5, 0);
      EXPECT_EQ(late.weights(), prompt.weights());
      EXPECT_EQ(late.training().islands()->exchanged().payload(),
                prompt.training().islands()->exchanged().payload());
    }
  });
}

// What moved meanwhile stays: the values are the new anchor and that.
TEST_F(IslandsTest, WhatMovesDuringADelayIsAdded) {
  const Plan plan = plans(Device::kCpu)[0];
  const auto prompt_job = after_an_exchange(plan, 0), late_job = after_an_exchange(plan, 1);
  Job &prompt = *prompt_job, &late = *late_job;
  const std::vector<double> begun = late.weights();
  late.step(3);
  const std::vector<double> moved = late.weights();
  late.training().islands()->end_step(4);
  const std::vector<double> after = late.weights(), anchor = prompt.weights();
  for (size_t i = 0; i < after.size(); ++i) {
    const float since = static_cast<float>(moved[i]) - static_cast<float>(begun[i]);
    ASSERT_EQ(after[i], static_cast<float>(anchor[i]) + since);
  }
}

TEST_F(IslandsTest, DriftIsTheNormOfWhatTheyMovedOverThatOfTheValues) {
  for (Plan plan : plans(Device::kCpu)) {
    SCOPED_TRACE(str(plan.islands, " islands, stage ", plan.zero));
    plan.exchange->outer = {.lr = 1, .momentum = 0};
    Job job(plan);
    const std::vector<double> start = job.weights();
    run(job, 1, 3);
    const std::optional<IslandSync::Drift> drift = job.training().islands()->take_drift();
    ASSERT_TRUE(drift.has_value());
    EXPECT_FALSE(job.training().islands()->take_drift().has_value());
    const std::vector<double> after = job.weights();
    double moved = 0, values = 0;
    for (size_t i = 0; i < after.size(); ++i) {
      moved += (after[i] - start[i]) * (after[i] - start[i]);
      values += after[i] * after[i];
    }
    // Each value moves by about a hundredth of itself, and is rounded to 2^-24 of itself: 2^-17.
    EXPECT_NEAR(drift->value() / std::sqrt(moved / values), 1, 0x1p-17);
  }
}

}  // namespace
}  // namespace tandem::testing

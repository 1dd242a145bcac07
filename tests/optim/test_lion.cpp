#include <gtest/gtest.h>

#include <vector>

#include "optim/lion.h"
#include "tests/optim/optimizer_check.h"

namespace tandem::testing {
namespace {

MakeOptimizer lion_with(const LionOptions& options) {
  return [=](std::span<const Shard> shards, Memory& memory) {
    return make_optimizer(options, shards, memory);
  };
}

// The numbers are those of the paper's program 1 in f64, with halved gradients. No mean is nearer
// to zero than 2e-4, except where it is zero, so all signs are sure. Tolerance: a step rounds a
// value of at most 2 twice (2 * 2^-24 * 2 = 2.4e-7): below 1e-6 after four steps. The mean stays
// below 1/16.
TEST(Lion, FourStepsOfThePaper) {
  for_each_device([&](Device device) {
    Trained trained = train_four_steps(lion_with({}), device);
    expect_near(trained.value,
                {0.5317569392815, -1.28686243065875, 1.932137862036, -0.07599234214071875, 0.535,
                 -1.295, 1.945, -0.07625},
                1e-6);
    EXPECT_EQ(trained.state.size(), 1U);
    const std::vector<double> m = {-0.0012275455, 0.015254826, -0.001004651, 0.007351};
    trained.state["m"].resize(m.size());
    expect_near(trained.state["m"], m, 1e-8);
  });
}

// All steps have the length of the learning rate, whatever the gradients' size; none without one.
// Tolerance: the value is below 1, so ten steps round it by at most 10 * 2^-24.
TEST(Lion, EveryStepIsOneLearningRate) {
  for_each_device([&](Device device) {
    const std::vector<Shard> shards = {
        {f32_tensor({0.5, -0.5, 0.25}, device), f32_tensor({1e-9, -7.0, 0}, device), true}};
    const auto lion = lion_with({.weight_decay = 0})(shards, test_memory(device));
    DeviceState state(device);
    const DeviceNumbers numbers(device, {.lr = 0.01});
    for (int t = 1; t <= 10; ++t) {
      state.decide(1);
      lion->step(test_stream(device), shards, {.numbers = numbers.get(), .state = state.get()});
    }
    expect_near(values_of(shards[0].value), {0.4, -0.4, 0.25}, 10 * 6e-8);
  });
}

TEST(Lion, CutsAndThreadsChangeNoBit) { check_cuts_and_threads_change_no_bit(lion_with({})); }
TEST(Lion, WorkingCopyIsTheRoundedValue) { check_working_copy(lion_with({})); }
TEST(Lion, ASkippedStepLeavesAllBits) { check_skipped_step_leaves_all_bits(lion_with({})); }
TEST(Lion, UpdatesOneShard) { check_updates_of_one_shard(lion_with({})); }
TEST(Lion, DevicesAgree) { check_devices_agree(lion_with({})); }
TEST(Lion, RefusesOtherShards) { check_refuses_other_shards(lion_with({})); }

TEST(Lion, RefusesOptionsOutOfRange) {
  for (const auto& [options, setting] : {std::pair{LionOptions{.beta1 = 1}, "optim.beta1 = 1"},
                                         {LionOptions{.beta2 = -0.1}, "optim.beta2"},
                                         {LionOptions{.weight_decay = -1}, "optim.weight_decay"}}) {
    check_refuses([&, &options = options] { make_optimizer(options, {}, test_memory()); }, setting);
  }
}

}  // namespace
}  // namespace tandem::testing

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "optim/adamw.h"
#include "tests/optim/optimizer_check.h"

namespace tandem::testing {
namespace {

MakeOptimizer adamw_with(const AdamWOptions& options) {
  return [=](std::span<const Shard> shards, Memory& memory) {
    return make_optimizer(options, shards, memory);
  };
}

// The numbers are those of torch.optim.AdamW in f64 with betas (0.9, 0.95), halved gradients, and
// the same learning rates.
// Tolerance: a step rounds a value of at most 2 twice (2 * 2^-24 * 2 = 2.4e-7), and its move of at
// most 0.03 about ten times (2e-8): below 1.1e-6 after four steps. The states are smaller than 1/4.
TEST(AdamW, FourStepsOfPyTorch) {
  const std::vector<double> decayed_then_plain = {
      0.5083865632180424, -1.2528494300480097, 1.9700155559189763, -0.05617616823704452,
      0.5116186693966551, -1.2609152905171435, 1.9828906447685715, -0.056433694780366764};
  const std::vector<double> m = {-0.01030495, 0.152835, -0.0105245, 0.061,
                                 -0.01030495, 0.152835, -0.0105245, 0.061};
  const std::vector<double> v = {0.0019418593750125017, 0.1136337656250001,    0.007283308156250006,
                                 0.06012500000000005,   0.0019418593750125017, 0.1136337656250001,
                                 0.007283308156250006,  0.06012500000000005};
  for_each_device([&](Device device) {
    const Trained trained = train_four_steps(
        adamw_with({.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}), device);
    expect_near(trained.value, decayed_then_plain, 1.1e-6);
    expect_near(trained.state.at("m"), m, 1e-7);
    expect_near(trained.state.at("v"), v, 1e-7);
  });
}

TEST(AdamW, CutsAndThreadsChangeNoBit) { check_cuts_and_threads_change_no_bit(adamw_with({})); }
TEST(AdamW, WorkingCopyIsTheRoundedValue) { check_working_copy(adamw_with({})); }
TEST(AdamW, ASkippedStepLeavesAllBits) { check_skipped_step_leaves_all_bits(adamw_with({})); }
TEST(AdamW, UpdatesOneShard) { check_updates_of_one_shard(adamw_with({})); }
TEST(AdamW, DevicesAgree) { check_devices_agree(adamw_with({})); }
TEST(AdamW, RefusesOtherShards) { check_refuses_other_shards(adamw_with({})); }

// With the same gradient in all steps, both bias corrections cancel, and every step has length lr.
// Tolerance: each of ten steps rounds a value below 1 by at most 6e-8. The sum of the moves, 0.1,
// is off by the relative error of m / sqrt(v), at most 20 roundings of each: 0.1 * 40 * 6e-8.
TEST(AdamW, BiasCorrectionMakesEveryStepOneLearningRate) {
  for_each_device([&](Device device) {
    const std::vector<Shard> shards = {
        {f32_tensor({0.5, -0.5}, device), f32_tensor({1e-3, -7.0}, device), true}};
    const auto adamw =
        make_optimizer(AdamWOptions{.beta1 = 0.9, .beta2 = 0.999, .eps = 0, .weight_decay = 0},
                       shards, test_memory(device));
    DeviceState state(device);
    const DeviceNumbers numbers(device, {.lr = 0.01});
    for (int t = 1; t <= 10; ++t) {
      state.decide(1);
      adamw->step(test_stream(device), shards, {.numbers = numbers.get(), .state = state.get()});
    }
    expect_near(values_of(shards[0].value), {0.4, -0.4}, 10 * 6e-8 + 0.1 * 40 * 6e-8);
  });
}

TEST(AdamW, StateIsZeroAndCounted) {
  for_each_device([&](Device device) {
    Memory memory(test_stream(device));
    const auto random = [&](int64_t n) {
      return to_device(random_tensor({n}, DType::kF32, 1), device);
    };
    const std::vector<Shard> shards = {{random(1024), random(1024), true},
                                       {random(64), random(64), false}};
    {
      const auto adamw = make_optimizer(AdamWOptions{}, shards, memory);
      EXPECT_GE(memory.use(MemoryClass::kOptimizer).bytes, 2 * 4 * (1024 + 64));
      EXPECT_EQ(memory.total().bytes, memory.use(MemoryClass::kOptimizer).bytes);
      std::map<std::string, int64_t> seen;
      adamw->visit([&](std::string_view slot, size_t shard, const Tensor& state) {
        seen[str(slot, shard)] = state.elements();
        EXPECT_EQ(values_of(state), std::vector<double>(values_of(state).size(), 0.0));
      });
      const std::map<std::string, int64_t> expected = {
          {"m0", 1024}, {"v0", 1024}, {"m1", 64}, {"v1", 64}};
      EXPECT_EQ(seen, expected);
    }
    EXPECT_EQ(memory.total().bytes, 0);
  });
}

TEST(AdamW, RefusesOptionsOutOfRange) {
  for (const auto& [options, setting] :
       {std::pair{AdamWOptions{.beta1 = 1}, "optim.beta1 = 1"},
        {AdamWOptions{.beta2 = -0.1}, "optim.beta2"},
        {AdamWOptions{.eps = -1}, "optim.eps"},
        {AdamWOptions{.weight_decay = -1}, "optim.weight_decay"}}) {
    check_refuses([&, &options = options] { make_optimizer(options, {}, test_memory()); }, setting);
  }
}

}  // namespace
}  // namespace tandem::testing

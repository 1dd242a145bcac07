#include <gtest/gtest.h>

#include <vector>

#include "optim/sgd.h"
#include "tests/optim/optimizer_check.h"

namespace tandem::testing {
namespace {

MakeOptimizer sgd_with(const SgdOptions& options) {
  return [=](std::span<const Shard> shards, Memory& memory) {
    return make_optimizer(options, shards, memory);
  };
}

const SgdOptions kPlain{.momentum = 0, .weight_decay = 0.1};
const SgdOptions kMomentum{.momentum = 0.9, .weight_decay = 0.1};
const SgdOptions kNesterov{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1};

// decayed_then_plain: the values of both shards. momentum: that of the first shard, empty if there
// is none. The numbers are those of torch.optim.SGD in f64.
// Tolerance: a step rounds a value of at most 2 once (1.2e-7), and its move of at most 0.1,
// computed with five roundings, adds 3e-8: below 6.2e-7 after four steps. The momentum stays
// below 2.
void expect_four_steps(const SgdOptions& options, const std::vector<double>& decayed_then_plain,
                       const std::vector<double>& momentum) {
  for_each_device([&](Device device) {
    Trained trained = train_four_steps(sgd_with(options), device);
    expect_near(trained.value, decayed_then_plain, 6.2e-7);
    EXPECT_EQ(trained.state.size(), momentum.empty() ? 0U : 1U);
    std::vector<double>& slot = trained.state["momentum"];
    slot.resize(momentum.size());
    expect_near(slot, momentum, 6.2e-7);
  });
}

TEST(Sgd, PlainIsPyTorchs) {
  expect_four_steps(kPlain,
                    {0.500121106003, -1.28838923088175, 1.9842709992454999, -0.05598484214071875,
                     0.503374985, -1.2965, 1.99724, -0.05625},
                    {});
}

TEST(Sgd, MomentumIsPyTorchs) {
  expect_four_steps(kMomentum,
                    {0.49803192655300005, -1.27517260836925, 1.9672509424205, -0.07090648887665625,
                     0.506263985, -1.295708, 2.0000876, -0.07155},
                    {0.0688474149, 1.100006603975, 0.57949280265, 0.595289369846875});
}

TEST(Sgd, NesterovIsPyTorchs) {
  expect_four_steps(
      kNesterov,
      {0.4983451399500462, -1.311091682690229, 1.954896218101527, -0.09151551520773582,
       0.5090125715, -1.3376372, 1.99731884, -0.09252},
      {0.06911509096409998, 1.1005228269557747, 0.5781686249293501, 0.5921603133292469});
}

class EverySgd : public ::testing::TestWithParam<SgdOptions> {};

TEST_P(EverySgd, CutsAndThreadsChangeNoBit) {
  check_cuts_and_threads_change_no_bit(sgd_with(GetParam()));
}
TEST_P(EverySgd, WorkingCopyIsTheRoundedValue) { check_working_copy(sgd_with(GetParam())); }
TEST_P(EverySgd, ASkippedStepLeavesAllBits) {
  check_skipped_step_leaves_all_bits(sgd_with(GetParam()));
}
TEST_P(EverySgd, UpdatesOneShard) { check_updates_of_one_shard(sgd_with(GetParam())); }
TEST_P(EverySgd, DevicesAgree) { check_devices_agree(sgd_with(GetParam())); }
TEST_P(EverySgd, RefusesOtherShards) { check_refuses_other_shards(sgd_with(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Sgd, EverySgd, ::testing::Values(kPlain, kMomentum, kNesterov),
                         [](const auto& variant) {
                           const SgdOptions& options = variant.param;
                           return options.nesterov       ? "Nesterov"
                                  : options.momentum > 0 ? "Momentum"
                                                         : "Plain";
                         });

TEST(Sgd, StateIsOneZeroTensorPerShard) {
  Memory memory(Device::kCpu);
  const std::vector<Shard> shards = {
      {random_tensor({1024}, DType::kF32, 1), random_tensor({1024}, DType::kF32, 2), true}};
  {
    const auto plain = make_optimizer(kPlain, shards, memory);
    EXPECT_LT(memory.total().bytes, 1024);
    const auto sgd = make_optimizer(SgdOptions{}, shards, memory);
    EXPECT_GE(memory.use(MemoryClass::kOptimizer).bytes, 4 * 1024);
    int count = 0;
    sgd->visit([&](std::string_view, size_t shard, const Tensor& state) {
      ++count;
      EXPECT_EQ(shard, 0U);
      EXPECT_EQ(values_of(state), std::vector<double>(1024, 0.0));
    });
    EXPECT_EQ(count, 1);
  }
  EXPECT_EQ(memory.total().bytes, 0);
}

TEST(Sgd, RefusesOptionsOutOfRange) {
  for (const auto& [options, setting] :
       {std::pair{SgdOptions{.momentum = 1}, "optim.momentum = 1"},
        {SgdOptions{.weight_decay = -1}, "optim.weight_decay"},
        {SgdOptions{.momentum = 0, .nesterov = true}, "optim.nesterov"}}) {
    check_refuses([&, &options = options] { make_optimizer(options, {}, test_memory()); }, setting);
  }
}

}  // namespace
}  // namespace tandem::testing

// Exact sums of a parameter that two blocks use: what each block gives to it is a leaf. Runs on
// every rank of a job of 1 to 4 ranks.
#include <gtest/gtest.h>

#include "tests/comm/sharding/store_model.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

// In f32, kLarge + 1 is kLarge.
constexpr float kLarge = 1 << 25;

class SharedLeaves : public ::testing::Test {
 protected:
  void give(Parameter& parameter, float gradient) {
    const GradTarget target = grad_target(parameter);
    for (float& g : target.into.as<float>()) {
      g = (target.beta ? g : 0) + gradient;
    }
  }
  // The last block gives `last` to parameter 0, and then the first block `first`.
  void backward(ParamStore& store, StoreModel& model, float last, float first) {
    GradientSync& sync = store.gradients;
    sync.acquire(test.context, 1, Pass::kBackward);
    give(model.parameters[0], last);
    give(model.parameters[1], 1);
    sync.on_final(test.context, model.parameters[1]);
    sync.release(test.context, 1, Pass::kBackward);
    sync.acquire(test.context, 0, Pass::kBackward);
    give(model.parameters[0], first);
    sync.on_final(test.context, model.parameters[0]);
    sync.release(test.context, 0, Pass::kBackward);
  }
  bool step(ParamStore& store, StoreModel& model) {
    store.gradients.begin_step();
    store.gradients.begin_backward(false);
    backward(store, model, kLarge, 1);
    EXPECT_TRUE(store.gradients.finish_backward());
    store.gradients.begin_backward(true);
    backward(store, model, -kLarge, 1);
    return store.gradients.finish_backward();
  }

  const Ranks world = test_ranks();
  TestContext test;
  Memory memory{Device::kCpu};
  Group data{world.control, world.collectives, memory,
             std::vector<int>(static_cast<size_t>(world.size()), 0)};
};

TEST_F(SharedLeaves, AreNotRoundedTogether) {
  for (int zero = 0; zero <= 3; ++zero) {
    for (const bool overlap : {true, false}) {
      SCOPED_TRACE(str("stage ", zero, ", overlap ", overlap));
      StoreModel model{{{7}}, {{5}}};
      model.parameters[0].blocks = 2;
      ParamStore store(model.blocks, data, test.stream, memory,
                       {.overlap = overlap, .zero = zero, .exact_micro_batches = 2 * world.size()});
      store.values.initialize(1);
      store.values.gather();
      ASSERT_FALSE(step(store, model));  // finds the exponents
      ASSERT_TRUE(step(store, model));
      for (size_t shard = 0; shard < store.shards.all().size(); ++shard) {
        const Tensor sums = store.shards.all()[shard].grad;
        for (const Extent& extent : store.shards.extents(shard)) {
          for (const double sum : values_of(sums.slice(extent.in_flat, extent.count))) {
            EXPECT_EQ(sum, 2 * world.size()) << store.shards.parameter(extent).name;
          }
        }
      }
    }
  }
}

// There are as many leaves as there can be, all as large as the exponents allow. Neither their sum
// nor its square overflows.
TEST_F(SharedLeaves, HaveRoomForTheirSum) {
  StoreModel model{{{7}}, {{5}}};
  model.parameters[0].blocks = 2;
  ParamStore store(model.blocks, data, test.stream, memory, {.exact_micro_batches = world.size()});
  const auto run = [&](float gradient) {
    store.gradients.begin_step();
    store.gradients.begin_backward(true);
    backward(store, model, gradient, gradient);
    return store.gradients.finish_backward();
  };
  ASSERT_FALSE(run(1));          // finds the exponents
  constexpr float kMost = 2047;  // what was 1 may become anything below 2^11
  ASSERT_TRUE(run(kMost));
  const double sum = 2.0 * world.size() * kMost, plain = world.size();
  EXPECT_EQ(model.parameters[0].grad.as<float>()[0], sum);
  EXPECT_EQ(model.parameters[1].grad.as<float>()[0], plain);
  const Tensor norm = Tensor::zeros(memory, {1}, DType::kF64, MemoryClass::kData);
  store.gradients.squared_norm(norm, {});
  EXPECT_EQ(*norm.data<double>(), world.rank() == 0 ? 7 * sum * sum + 5 * plain * plain : 0);
}

}  // namespace
}  // namespace tandem::testing

// The running averages of BatchNorm after whole training steps on 1 to 4 ranks, from micro-batches
// with known means and variances.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "layers/batchnorm2d/batchnorm2d.h"
#include "layers/models/classifier.h"
#include "layers/norm/norm.h"
#include "optim/adamw.h"
#include "src/step/batch_statistics.h"
#include "src/step/training_step.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int64_t kChannels = 3, kSamples = 2;  // in a micro-batch

// A model that normalises its input. Its head, which is never recomputed, scales the result.
class OneNorm final : public Classifier {
 public:
  OneNorm() : Classifier(kChannels) {
    add({{"norm", parameters_in(norm_)},
         [this](Context& context, const Flow& x) -> Flow { return {norm_(context, x[0])}; }});
    add({{"head", parameters_in(head_)},
         [this](Context& context, const Flow& x) -> Flow { return {head_(context, x[0])}; }});
  }
  std::vector<RunningStatistics*> statistics() override { return {&norm_.statistics()}; }
  double flops_per_sample() const override { return 0; }

 private:
  BatchNorm2d norm_{"norm", kChannels};
  Norm head_{"head", kChannels, kNormEpsilon, false};
};

// The mean of channel c in micro-batch `number` (counted over all ranks). It is a whole number, so
// that sums are exact.
double mean_of(int64_t number, int64_t c) { return static_cast<double>(3 * number + c + 1); }
double spread_of(int64_t number, int64_t c) { return static_cast<double>(number + 2 * c + 1); }

// The two samples are mean - spread and mean + spread, whose unbiased variance is 2 spread^2.
DeviceBatch micro_batch(int64_t number) {
  const Tensor input =
      Tensor::empty(test_memory(), {kSamples, kChannels}, DType::kF32, MemoryClass::kData);
  for (int64_t c = 0; c < kChannels; ++c) {
    const double mean = mean_of(number, c), spread = spread_of(number, c);
    input.data<float>()[c] = static_cast<float>(mean - spread);
    input.data<float>()[kChannels + c] = static_cast<float>(mean + spread);
  }
  return {input, int_tensor({kSamples}, std::vector<int32_t>{0, 1})};
}

// The means, then the variances, after `steps` steps, each on different micro-batches.
std::vector<double> trained(int64_t accumulation, bool exact, bool recompute, int64_t steps) {
  World& world = test_world();
  const BatchPlan batch{.global_batch = kSamples * accumulation * world.size(),
                        .given_micro_batch = kSamples,
                        .ranks = world.size()};
  Memory memory(test_stream());
  Group data(world.control(), world.collectives(), memory, nodes_of(world.control(), "host", 0));
  OneNorm model;
  TrainingStep training(
      model, data, test_stream(), memory, memory,
      {.batch = batch,
       .recompute = recompute,
       .exact = exact,
       .optimizer = [](std::span<const Shard> shards, const OptimizerMemory& memory_of_state) {
         return make_optimizer(AdamWOptions{}, shards, memory_of_state);
       }});
  training.store().values.initialize(1);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t first = (step * world.size() + world.rank()) * accumulation;
    // The gradients of the second step do not fit the exponents of the first: it runs twice.
    training.run({.step = step,
                  .lr = 0.01,
                  .targets = static_cast<double>(batch.global_batch) * (step == 1 ? 0x1p-20 : 1),
                  .batch = [&](int64_t i) { return micro_batch(first + i); }});
  }
  data.stream().synchronize();
  test_stream().synchronize();
  return values_of(model.statistics()[0]->running);
}

// Parameters: exact sums or not; with or without recomputation, which runs forward twice but
// observes statistics once.
class RunningAverages : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(RunningAverages, MoveByATenthTowardsTheMeanOverMicroBatches) {
  const auto [exact, recompute] = GetParam();
  for (const int64_t accumulation : {1, 2, 3}) {
    SCOPED_TRACE(accumulation);
    const int64_t micro_batches = accumulation * test_world().size();
    std::vector<double> expected(2 * kChannels, 0);
    std::fill_n(expected.begin() + kChannels, kChannels, 1);
    for (int64_t steps = 1; steps <= 2; ++steps) {
      for (int64_t c = 0; c < kChannels; ++c) {
        double means = 0, variances = 0;
        for (int64_t i = (steps - 1) * micro_batches; i < steps * micro_batches; ++i) {
          means += mean_of(i, c);
          variances += 2 * std::pow(spread_of(i, c), 2);
        }
        const auto count = static_cast<double>(micro_batches);
        expected[c] = 0.9 * expected[c] + 0.1 * means / count;
        expected[kChannels + c] = 0.9 * expected[kChannels + c] + 0.1 * variances / count;
      }
      const std::vector<double> actual = trained(accumulation, exact, recompute, steps);
      for (int64_t i = 0; i < 2 * kChannels; ++i) {
        // All terms are positive, and a step rounds each at most four times in f32.
        EXPECT_NEAR(actual[i], expected[i], 8 * 0x1p-24 * expected[i]) << i << " after " << steps;
      }
    }
  }
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<bool, bool>>& info) {
  const auto [exact, recompute] = info.param;
  return std::string(exact ? "Exact" : "Ring") + (recompute ? "Recomputed" : "");
}
INSTANTIATE_TEST_SUITE_P(Sums, RunningAverages,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()), name_of_case);

}  // namespace
}  // namespace tandem::testing

#include <gtest/gtest.h>

#include <vector>

#include "optim/outer.h"
#include "optim/sgd.h"
#include "src/device/copy.h"
#include "tests/optim/optimizer_check.h"

namespace tandem::testing {
namespace {

constexpr int64_t kElements = 1003;  // no multiple of what a block or a vector takes

std::vector<double> numbers(int from, int64_t count = kElements) {
  return values_of(random_tensor({count}, DType::kF32, from));
}

OuterOptimizer outer_of(std::span<const Shard> shards, Device device,
                        const OuterOptions& options = {}) {
  return {make_optimizer(SgdOptions{}, shards, test_memory(device)), options, shards,
          test_memory(device)};
}

// Two shards, of all but the last three elements and of these, and what becomes of them in steps
// whose d are numbers(10), numbers(11), ... Before each but the first the values move.
struct Outcome {
  std::vector<double> value, anchor, momentum, moved;
  bool operator==(const Outcome&) const = default;
};

Outcome three_steps(Device device, bool has_moved_since) {
  const std::vector<double> start = numbers(1);
  const auto part = [&](const std::vector<double>& all, bool last) {
    return last ? std::vector<double>(all.end() - 3, all.end())
                : std::vector<double>(all.begin(), all.end() - 3);
  };
  std::vector<Shard> shards;
  for (const bool last : {false, true}) {
    shards.push_back(
        {f32_tensor(part(start, last), device), f32_tensor(part(start, last), device)});
  }
  const OuterOptimizer outer = outer_of(shards, device, {.lr = 0.7, .momentum = 0.9});
  Stream& stream = test_stream(device);
  outer.start(stream, shards);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const Tensor before = f32_tensor(start, device);
    if (has_moved_since) {
      for (const bool last : {false, true}) {
        copy(stream, f32_tensor(part(numbers(20 + step), last), device), shards[last].value);
      }
    }
    outer.outer_step(stream, shards, f32_tensor(numbers(10 + step), device),
                     has_moved_since ? before : Tensor());
  }
  const Tensor moved = f32_tensor(std::vector<double>(kElements), device);
  outer.measure(stream, shards, moved);
  for (const Shard& shard : shards) {
    for (const double value : values_of(shard.value)) {
      outcome.value.push_back(value);
    }
  }
  outcome.anchor = values_of(outer.anchor());
  outcome.moved = values_of(moved);
  outer.visit([&](std::string_view slot, size_t, const Tensor& state) {
    if (slot == "outer_m") {
      for (const double m : values_of(state)) {
        outcome.momentum.push_back(m);
      }
    }
  });
  return outcome;
}

// The formula in f64. Tolerance: all numbers are below 8, and each of three steps rounds them four
// times to 2^-24 of that: 3 * 4 * 8 * 2^-24 = 6e-6.
TEST(Outer, ThreeStepsOfTheFormula) {
  for_each_device([&](Device device) {
    for (const bool has_moved : {false, true}) {
      const Outcome actual = three_steps(device, has_moved);
      Outcome expected;
      expected.anchor = numbers(1);
      expected.momentum.resize(kElements);
      for (int step = 0; step < 3; ++step) {
        const std::vector<double> d = numbers(10 + step);
        for (size_t i = 0; i < d.size(); ++i) {
          double& m = expected.momentum[i];
          m = 0.9 * m + d[i];
          expected.anchor[i] -= 0.7 * (d[i] + 0.9 * m);
        }
      }
      expected.value = expected.anchor;
      const std::vector<double> start = numbers(1), last = numbers(22);
      for (size_t i = 0; i < start.size() && has_moved; ++i) {
        expected.value[i] += last[i] - start[i];
      }
      expect_near(actual.anchor, expected.anchor, 6e-6);
      expect_near(actual.momentum, expected.momentum, 6e-6);
      expect_near(actual.value, expected.value, 6e-6);
      for (size_t i = 0; i < start.size(); ++i) {
        ASSERT_EQ(actual.moved[i],
                  static_cast<float>(actual.anchor[i]) - static_cast<float>(actual.value[i]));
      }
    }
  });
}

TEST(Outer, ValuesAreTheAnchorUnlessTheyHaveMoved) {
  for_each_device([&](Device device) {
    const Outcome together = three_steps(device, false);
    EXPECT_EQ(together.value, together.anchor);
    EXPECT_NE(three_steps(device, true).value, together.anchor);
  });
}

TEST(Outer, DevicesAgree) {
  for (const bool has_moved : {false, true}) {
    const Outcome cpu = three_steps(Device::kCpu, has_moved);
    for_each_device([&](Device device) { EXPECT_EQ(three_steps(device, has_moved), cpu); });
  }
}

TEST(Outer, RefusesOtherShardsAndOptions) {
  const std::vector<Shard> shards = {{f32_tensor({1, 2}), f32_tensor({1, 2})}};
  const std::vector<Shard> others = {{f32_tensor({1, 2, 3}), f32_tensor({1, 2, 3})}};
  const OuterOptimizer outer = outer_of(shards, Device::kCpu);
  Stream& stream = test_stream(Device::kCpu);
  EXPECT_THROW(outer.start(stream, others), Error);
  EXPECT_THROW(outer.start(stream, {}), Error);
  EXPECT_THROW(outer_of(shards, Device::kCpu, {.lr = -1}), Error);
  EXPECT_THROW(outer_of(shards, Device::kCpu, {.momentum = 1}), Error);
}

}  // namespace
}  // namespace tandem::testing

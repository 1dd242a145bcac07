#include <gtest/gtest.h>
#include <omp.h>

#include <map>
#include <vector>

#include "optim/adamw.h"
#include "tests/harness.h"

namespace tandem::testing {
namespace {

const std::vector<double> kStart = {0.5, -1.25, 2.0, -0.03125};
const std::vector<std::vector<double>> kGrads = {
    {0.1, -0.2, 0.3, 0.0}, {-0.4, 0.25, 1e-3, 2.0}, {0.05, 0.0, -0.7, -1.0}, {1e-6, 3.0, 0.2, 0.5}};
const std::vector<double> kLr = {0.01, 0.02, 0.005, 0.03};

Tensor tensor_of(const std::vector<double>& values) {
  Tensor tensor = Tensor::empty(test_memory(), Shape{static_cast<int64_t>(values.size())},
                                DType::kF32, MemoryClass::kParameters);
  std::copy(values.begin(), values.end(), tensor.as<float>().begin());
  return tensor;
}

std::vector<double> state_of(const Optimizer& optimizer, std::string_view wanted, size_t of) {
  std::vector<double> values;
  optimizer.visit([&](std::string_view slot, size_t shard, const Tensor& state) {
    if (slot == wanted && shard == of) {
      values = values_of(state);
    }
  });
  return values;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance) << i;
  }
}

// torch.optim.AdamW in f64 with betas (0.9, 0.95), gradients halved, learning rates as in kLr.
// Tolerance: a step rounds a value of at most 2 twice (2 * 2^-24 * 2 = 2.4e-7), and its move of at
// most 0.03 about ten times (2e-8): below 1.1e-6 after four steps. The states are smaller than 1/4.
TEST(AdamW, FourStepsOfPyTorch) {
  const std::vector<double> decayed = {0.5083865632180424, -1.2528494300480097, 1.9700155559189763,
                                       -0.05617616823704452};
  const std::vector<double> plain = {0.5116186693966551, -1.2609152905171435, 1.9828906447685715,
                                     -0.056433694780366764};
  const std::vector<double> m = {-0.01030495, 0.152835, -0.0105245, 0.061};
  const std::vector<double> v = {0.0019418593750125017, 0.1136337656250001, 0.007283308156250006,
                                 0.06012500000000005};
  for_each_device([&](Device device) {
    Stream stream = Stream::compute(device);
    // The decay is a property of each shard.
    const std::vector<Shard> shards = {{tensor_of(kStart), tensor_of(kStart), true},
                                       {tensor_of(kStart), tensor_of(kStart), false}};
    const auto adamw = make_adamw({.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
                                  shards, test_memory());
    for (size_t t = 0; t < kGrads.size(); ++t) {
      for (const Shard& shard : shards) {
        std::copy(kGrads[t].begin(), kGrads[t].end(), shard.grad.as<float>().begin());
      }
      adamw->step(stream, shards,
                  {.lr = kLr[t], .step = static_cast<int64_t>(t) + 1, .grad_scale = 0.5});
    }
    stream.synchronize();
    expect_near(values_of(shards[0].value), decayed, 1.1e-6);
    expect_near(values_of(shards[1].value), plain, 1.1e-6);
    for (size_t shard = 0; shard < 2; ++shard) {
      expect_near(state_of(*adamw, "m", shard), m, 1e-7);
      expect_near(state_of(*adamw, "v", shard), v, 1e-7);
    }
  });
}

// Trains one array of `n` elements, cut at `cuts`, for three steps.
std::vector<double> train_in_pieces(const std::vector<int64_t>& cuts) {
  const int64_t n = cuts.back();
  Tensor value = random_tensor({n}, DType::kF32, 1);
  Tensor grad = Tensor::empty(test_memory(), {n}, DType::kF32, MemoryClass::kGradients);
  std::vector<Shard> shards;
  int64_t first = 0;
  for (const int64_t last : cuts) {
    shards.push_back({value.slice(first, last - first), grad.slice(first, last - first), true});
    first = last;
  }
  Stream stream = Stream::compute(Device::kCpu);
  const auto adamw = make_adamw({}, shards, test_memory());
  for (int64_t t = 1; t <= 3; ++t) {
    const Tensor source = random_tensor({n}, DType::kF32, 10 + static_cast<uint64_t>(t));
    std::copy_n(source.data<float>(), n, grad.data<float>());
    adamw->step(stream, shards, {.lr = 1e-2, .step = t, .grad_scale = 0.37});
  }
  return values_of(value);
}

// What ZeRO relies on: an element's bits do not depend on the shard it is in, on its place in it
// (vector or remainder), or on the number of threads.
TEST(AdamW, CutsAndThreadsChangeNoBit) {
  const int64_t n = 50'021;
  const std::vector<double> whole = train_in_pieces({n});
  EXPECT_EQ(train_in_pieces({1, 18, 49, 20'000, 20'000, 50'000, n}), whole);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(threads == 3 ? 2 : 3);
  EXPECT_EQ(train_in_pieces({n}), whole);
  omp_set_num_threads(threads);
}

// With one gradient again and again, both bias corrections cancel, and every step has length lr.
// Tolerance: ten steps round a value below 1 by 6e-8 each; the sum of the moves, 0.1, is off by the
// relative error of m / sqrt(v), at most 20 roundings of each: 0.1 * 40 * 6e-8.
TEST(AdamW, BiasCorrectionMakesEveryStepOneLearningRate) {
  const std::vector<Shard> shards = {{tensor_of({0.5, -0.5}), tensor_of({1e-3, -7.0}), true}};
  const auto adamw = make_adamw({.beta1 = 0.9, .beta2 = 0.999, .eps = 0, .weight_decay = 0}, shards,
                                test_memory());
  Stream stream = Stream::compute(Device::kCpu);
  for (int64_t t = 1; t <= 10; ++t) {
    adamw->step(stream, shards, {.lr = 0.01, .step = t});
  }
  expect_near(values_of(shards[0].value), {0.4, -0.4}, 10 * 6e-8 + 0.1 * 40 * 6e-8);
}

TEST(AdamW, StateIsZeroAndCounted) {
  Memory memory(Device::kCpu);
  const std::vector<Shard> shards = {
      {random_tensor({1024}, DType::kF32, 1), random_tensor({1024}, DType::kF32, 2), true},
      {random_tensor({64}, DType::kF32, 1), random_tensor({64}, DType::kF32, 2), false}};
  {
    const auto adamw = make_adamw({}, shards, memory);
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
}

TEST(AdamW, RefusesOptionsOutOfRange) {
  const auto message_of = [](const AdamWOptions& options) -> std::string {
    try {
      make_adamw(options, {}, test_memory());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message_of({.beta1 = 1}).find("optim.beta1 = 1"), std::string::npos);
  EXPECT_NE(message_of({.beta2 = -0.1}).find("optim.beta2"), std::string::npos);
  EXPECT_NE(message_of({.eps = -1}).find("optim.eps"), std::string::npos);
  EXPECT_NE(message_of({.weight_decay = -1}).find("optim.weight_decay"), std::string::npos);
}

TEST(AdamW, RefusesOtherShards) {
  const std::vector<Shard> shards = {{tensor_of(kStart), tensor_of(kStart), true}};
  const std::vector<Shard> shorter = {{tensor_of({1}), tensor_of({1}), true}};
  const auto adamw = make_adamw({}, shards, test_memory());
  Stream stream = Stream::compute(Device::kCpu);
  EXPECT_THROW(adamw->step(stream, {}, {.lr = 1, .step = 1}), Error);
  EXPECT_THROW(adamw->step(stream, shorter, {.lr = 1, .step = 1}), Error);
  EXPECT_THROW(adamw->step(stream, shards, {.lr = 1, .step = 0}), Error);
}

}  // namespace
}  // namespace tandem::testing

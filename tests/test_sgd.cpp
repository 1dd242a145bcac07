#include <gtest/gtest.h>
#include <omp.h>

#include <vector>

#include "optim/sgd.h"
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

struct Result {
  std::vector<double> decayed, plain, momentum;  // the momentum of the decayed shard
};

// Four steps of kGrads, halved, on a shard with weight decay and on one without.
Result train(const SgdOptions& options) {
  Result result;
  for_each_device([&](Device device) {
    Stream stream = Stream::compute(device);
    const std::vector<Shard> shards = {{tensor_of(kStart), tensor_of(kStart), true},
                                       {tensor_of(kStart), tensor_of(kStart), false}};
    const auto sgd = make_sgd(options, shards, test_memory());
    for (size_t t = 0; t < kGrads.size(); ++t) {
      for (const Shard& shard : shards) {
        std::copy(kGrads[t].begin(), kGrads[t].end(), shard.grad.as<float>().begin());
      }
      sgd->step(stream, shards,
                {.lr = kLr[t], .step = static_cast<int64_t>(t) + 1, .grad_scale = 0.5});
    }
    stream.synchronize();
    result.decayed = values_of(shards[0].value);
    result.plain = values_of(shards[1].value);
    sgd->visit([&](std::string_view slot, size_t shard, const Tensor& state) {
      EXPECT_EQ(slot, "momentum");
      if (shard == 0) {
        result.momentum = values_of(state);
      }
    });
  });
  return result;
}

// Tolerance: a step rounds a value of at most 2 once (1.2e-7), and its move of at most 0.1,
// computed with five roundings, adds 3e-8: below 6.2e-7 after four steps. The momentum stays
// below 2.
constexpr double kTolerance = 6.2e-7;

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], kTolerance) << i;
  }
}

// The numbers are those of torch.optim.SGD in f64.
TEST(Sgd, PlainIsPyTorchs) {
  const Result result = train({.momentum = 0, .weight_decay = 0.1});
  expect_near(result.decayed,
              {0.500121106003, -1.28838923088175, 1.9842709992454999, -0.05598484214071875});
  expect_near(result.plain, {0.503374985, -1.2965, 1.99724, -0.05625});
  EXPECT_TRUE(result.momentum.empty());
}

TEST(Sgd, MomentumIsPyTorchs) {
  const Result result = train({.momentum = 0.9, .weight_decay = 0.1});
  expect_near(result.decayed,
              {0.49803192655300005, -1.27517260836925, 1.9672509424205, -0.07090648887665625});
  expect_near(result.plain, {0.506263985, -1.295708, 2.0000876, -0.07155});
  expect_near(result.momentum, {0.0688474149, 1.100006603975, 0.57949280265, 0.595289369846875});
}

TEST(Sgd, NesterovIsPyTorchs) {
  const Result result = train({.momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
  expect_near(result.decayed,
              {0.4983451399500462, -1.311091682690229, 1.954896218101527, -0.09151551520773582});
  expect_near(result.plain, {0.5090125715, -1.3376372, 1.99731884, -0.09252});
  expect_near(result.momentum,
              {0.06911509096409998, 1.1005228269557747, 0.5781686249293501, 0.5921603133292469});
}

// Trains one array, cut at `cuts`, for three steps.
std::vector<double> train_in_pieces(const SgdOptions& options, const std::vector<int64_t>& cuts) {
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
  const auto sgd = make_sgd(options, shards, test_memory());
  for (int64_t t = 1; t <= 3; ++t) {
    const Tensor source = random_tensor({n}, DType::kF32, 10 + static_cast<uint64_t>(t));
    std::copy_n(source.data<float>(), n, grad.data<float>());
    sgd->step(stream, shards, {.lr = 1e-2, .step = t, .grad_scale = 0.37});
  }
  return values_of(value);
}

// What ZeRO relies on: an element's bits do not depend on the shard it is in, on its place in it
// (vector or remainder), or on the number of threads.
TEST(Sgd, CutsAndThreadsChangeNoBit) {
  const int64_t n = 50'021;
  for (const SgdOptions& options :
       {SgdOptions{.momentum = 0, .weight_decay = 0.1}, SgdOptions{.weight_decay = 0.1},
        SgdOptions{.nesterov = true, .weight_decay = 0.1}}) {
    const std::vector<double> whole = train_in_pieces(options, {n});
    EXPECT_EQ(train_in_pieces(options, {1, 18, 49, 20'000, 20'000, 50'000, n}), whole);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(threads == 3 ? 2 : 3);
    EXPECT_EQ(train_in_pieces(options, {n}), whole);
    omp_set_num_threads(threads);
  }
}

TEST(Sgd, StateIsOneZeroTensorPerShard) {
  Memory memory(Device::kCpu);
  const std::vector<Shard> shards = {
      {random_tensor({1024}, DType::kF32, 1), random_tensor({1024}, DType::kF32, 2), true}};
  {
    const auto plain = make_sgd({.momentum = 0}, shards, memory);
    EXPECT_EQ(memory.total().bytes, 0);
    const auto sgd = make_sgd({}, shards, memory);
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
  const auto message_of = [](const SgdOptions& options) -> std::string {
    try {
      make_sgd(options, {}, test_memory());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message_of({.momentum = 1}).find("optim.momentum = 1"), std::string::npos);
  EXPECT_NE(message_of({.weight_decay = -1}).find("optim.weight_decay"), std::string::npos);
  EXPECT_NE(message_of({.momentum = 0, .nesterov = true}).find("optim.nesterov"),
            std::string::npos);
}

TEST(Sgd, RefusesOtherShards) {
  const std::vector<Shard> shards = {{tensor_of(kStart), tensor_of(kStart), true}};
  const std::vector<Shard> shorter = {{tensor_of({1}), tensor_of({1}), true}};
  const auto sgd = make_sgd({}, shards, test_memory());
  Stream stream = Stream::compute(Device::kCpu);
  EXPECT_THROW(sgd->step(stream, {}, {.lr = 1, .step = 1}), Error);
  EXPECT_THROW(sgd->step(stream, shorter, {.lr = 1, .step = 1}), Error);
}

}  // namespace
}  // namespace tandem::testing

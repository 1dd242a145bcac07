// The norm of exact sums, and the verdict on which all ranks agree.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/comm/sharding/exact_rank.h"

namespace tandem::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The norm by its definition: integers of 128 bits, exact except for the last rounding.
double defined_norm(std::span<const float> values, double bound) {
  int exponent = 31;
  while (std::ldexp(bound, exponent) >= 0x1p31) {
    --exponent;
  }
  while (std::ldexp(bound, exponent) < 0x1p30) {
    ++exponent;
  }
  __int128 total = 0;
  for (float value : values) {
    const __int128 integer = exact_integer(value, exponent);
    total += integer * integer;
  }
  return std::ldexp(static_cast<double>(total), -2 * exponent);
}

TEST(ExactSums, SquaredNormHasItsBitsAndBoundInEverySplit) {
  const int64_t n = 50021;
  std::mt19937_64 random(11);
  for (const float scale : {1.0f, 0x1p-120f, 0x1p-140f, 0x1p115f}) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) {
      value = scale * static_cast<float>(random() % 4096) * (random() % 2 != 0 ? 1.0f : -1.0f);
    }
    values[77] = 4095 * scale;  // the largest there can be
    double norm2 = 0;
    for (float value : values) {
      norm2 += static_cast<double>(value) * value;
    }
    const double bound = 4.0 * 4095 * scale;  // of 4 leaves
    const double expected = defined_norm(values, bound);
    // sqrt(n) 2^-31 G, and what sums of n squares in f64 lose.
    EXPECT_NEAR(std::sqrt(expected), std::sqrt(norm2),
                std::sqrt(static_cast<double>(n)) * 0x1p-31 * bound +
                    static_cast<double>(n) * 0x1p-53 * std::sqrt(norm2));
    for_each_device([&](Device device) {
      Rank rank(device, 1, 4);
      Timeline timeline;
      rank.step(values[77]);
      ASSERT_EQ(rank.step(values[77]), Verdict::kGood);
      const Tensor all = rank.there(values);
      const std::vector<std::vector<Tensor>> splits = {
          {all},
          {all.slice(n - 1, 1), all.slice(0, 0), all.slice(0, n - 1)},
          {all.slice(40000, n - 40000), all.slice(0, 20001), all.slice(20001, 19999)}};
      for (const auto& parts : splits) {
        EXPECT_EQ(rank.exact.squared_norm(rank.collectives, parts, timeline), expected);
      }
    });
  }
}

TEST(ExactSums, SquaredNormRefusesWhatIsNoSum) {
  for_each_device([&](Device device) {
    Rank rank(device, 1, 2);
    Timeline timeline;
    rank.step(1);
    EXPECT_THROW(rank.exact.squared_norm(rank.collectives, {}, timeline),
                 Error);  // not judged good
    ASSERT_EQ(rank.step(1), Verdict::kGood);
    const auto norm = [&](float value) {
      return rank.exact.squared_norm(
          rank.collectives, std::vector<Tensor>{rank.there(std::vector<float>{value})}, timeline);
    };
    EXPECT_EQ(norm(-2), 4);
    for (float value : {1e10f, kNaN, -kInfinity}) {
      EXPECT_THROW(norm(value), Error) << value;
    }
    EXPECT_EQ(norm(0.5f), 0.25);
  });
}

// --- Ranks. ---

void for_ranks(int ranks, const std::function<void(const Ranks&, ExactSums&)>& body) {
  Meeting meeting(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Stream stream = Stream::compute(Device::kCpu);
      Memory memory(Device::kCpu);
      ThreadControl control(meeting, rank);
      ThreadCollectives collectives(meeting, rank, Device::kCpu);
      ExactSums exact(stream, memory, 1, 12);
      body({control, collectives}, exact);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(ExactSums, RanksJudgeTogether) {
  const Segments all = {{0, 0, 1}};
  for (int ranks : {1, 2, 3, 4}) {
    for_ranks(ranks, [&](const Ranks& among, ExactSums& exact) {
      Memory memory(Device::kCpu);
      const Tensor leaf = Tensor::empty(memory, {1}, DType::kF32, MemoryClass::kGradients);
      const Tensor sums = Tensor::empty(memory, {1}, DType::kI64, MemoryClass::kGradients);
      const auto step = [&](float of_last_rank) {
        const bool last = among.rank() == among.size() - 1;
        leaf.data<float>()[0] = last ? of_last_rank : 0;
        exact.begin_step();
        exact.quantise(leaf, all, sums, false);
        return exact.judge(among.control);
      };
      EXPECT_EQ(step(0), Verdict::kGood);
      EXPECT_EQ(step(1), Verdict::kAgain);
      EXPECT_EQ(step(1), Verdict::kGood);
      EXPECT_EQ(exact.exponents()[0], 58 - 11);
      // 12 elements, dealt to the ranks in turn.
      std::vector<float> own;
      for (int i = among.rank(); i < 12; i += among.size()) {
        own.push_back(std::ldexp(1.0f, -i));
      }
      const Tensor part = Tensor::empty(memory, {static_cast<int64_t>(own.size())}, DType::kF32,
                                        MemoryClass::kGradients);
      std::ranges::copy(own, part.data<float>());
      // The geometric series of 1/4; exact in f64.
      Timeline timeline;
      EXPECT_EQ(exact.squared_norm(among.collectives, std::vector<Tensor>{part}, timeline),
                (1 - 0x1p-24) / 0.75);
      EXPECT_EQ(step(0x1p20f), Verdict::kAgain);
      EXPECT_EQ(step(kNaN), Verdict::kNonFinite);
      EXPECT_EQ(step(0x1p20f), Verdict::kGood);
    });
  }
}

}  // namespace
}  // namespace tandem::testing

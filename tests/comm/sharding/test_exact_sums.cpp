// Sums of leaves in one process: any order and any split must give the bits of the definition.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/comm/sharding/exact_rank.h"

namespace tandem::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

float exact_value(int64_t sum, int32_t exponent) {
  return static_cast<float>(std::ldexp(static_cast<long double>(sum), -exponent));
}

// --- Splits. ---

constexpr int64_t kLeaves = 7, kCount = 20011;
// Segments longer than a block and than a loop's threshold for threads, at odd places, with gaps,
// and an empty one.
const Segments kSegments = {{1, 1, 17001}, {0, 17002, 0}, {2, 17003, 333}, {0, 17339, 2600}};
constexpr double kScale[] = {1e-30, 1.0, 3e4};

std::vector<std::vector<float>> random_leaves() {
  std::mt19937_64 random(5);
  std::vector<std::vector<float>> leaves(kLeaves, std::vector<float>(kCount, 7e30f));
  for (auto& leaf : leaves) {
    for (const Extent& segment : kSegments) {
      for (int64_t i = 0; i < segment.count; ++i) {
        const double size = std::ldexp(1, -static_cast<int>(random() % 60));
        const double g = (static_cast<double>(random() % 2001) - 1000) * size;
        leaf[segment.in_flat + i] = static_cast<float>(g * kScale[segment.parameter]);
      }
    }
  }
  return leaves;
}

// Segments in pieces of `length`.
Segments cut(int64_t length) {
  Segments pieces;
  for (const auto& [parameter, offset, count, in_parameter] : kSegments) {
    for (int64_t i = 0; i < count; i += length) {
      pieces.push_back({parameter, offset + i, std::min(length, count - i)});
    }
  }
  return pieces;
}

struct Sums {
  Tensor integers, values;
  std::vector<int32_t> exponents;
};

// Sums the leaves in `order`: the first `alone` leaves into one array and the others into a second
// one, which are added on the host. Runs twice, because the first attempt finds the exponents.
Sums summed(Device device, const std::vector<int64_t>& order, size_t alone,
            const Segments& segments) {
  const auto leaves = random_leaves();
  Rank rank(device, 3, kLeaves);
  Tensor total;
  for (const Verdict expected : {Verdict::kAgain, Verdict::kGood}) {
    rank.exact.begin_step();
    const Tensor parts[] = {rank.used(kCount, DType::kI64), rank.used(kCount, DType::kI64)};
    for (size_t i = 0; i < order.size(); ++i) {
      rank.exact.quantise(rank.there(leaves[order[i]]), segments, parts[i < alone ? 0 : 1],
                          i != 0 && i != alone);
    }
    EXPECT_EQ(rank.exact.judge(rank.control), expected);
    total = to_host(parts[1]);
    const Tensor first = to_host(parts[0]);
    std::ranges::transform(total.as<int64_t>(), first.as<int64_t>(), total.data<int64_t>(),
                           std::plus{});
  }
  const Tensor values = rank.used(kCount, DType::kF32);
  rank.exact.dequantise(to_device(total, device), segments, values);
  return {total, to_host(values), rank.exact.exponents()};
}

TEST(ExactSums, NoOrderOrSplitChangesABit) {
  std::vector<int64_t> order(kLeaves);
  std::iota(order.begin(), order.end(), 0);
  const Sums reference = summed(Device::kCpu, order, 3, kSegments);
  for_each_device([&](Device device) {
    for (size_t trial = 0; trial < 4; ++trial) {
      const Sums sums = summed(device, order, 1 + trial, cut(trial == 0 ? kCount : 97));
      EXPECT_TRUE(same_bits(sums.integers, reference.integers)) << trial;
      EXPECT_TRUE(same_bits(sums.values, reference.values)) << trial;
      EXPECT_EQ(sums.exponents, reference.exponents);
      std::ranges::shuffle(order, std::mt19937(static_cast<unsigned>(trial)));
    }
  });
}

TEST(ExactSums, AreTheIntegersAndValuesOfTheirDefinition) {
  std::vector<int64_t> order(kLeaves);
  std::iota(order.begin(), order.end(), 0);
  const auto leaves = random_leaves();
  for_each_device([&](Device device) {
    const Sums sums = summed(device, order, 2, kSegments);
    std::vector<int64_t> integers(kCount, 0);
    std::vector<float> values(kCount, 0), largest(3, 0);
    for (const auto& [parameter, offset, count, in_parameter] : kSegments) {
      const int32_t exponent = sums.exponents[parameter];
      for (int64_t i = offset; i < offset + count; ++i) {
        for (const auto& leaf : leaves) {
          integers[i] += exact_integer(leaf[i], exponent);
          largest[parameter] = std::max(largest[parameter], std::fabs(leaf[i]));
        }
        values[i] = exact_value(integers[i], exponent);
      }
    }
    for (size_t p = 0; p < largest.size(); ++p) {
      const double scaled = std::ldexp(static_cast<double>(largest[p]), sums.exponents[p]);
      EXPECT_GE(scaled, 0x1p48);  // 7 leaves: h is 59
      EXPECT_LT(scaled, 0x1p49);
    }
    EXPECT_TRUE(std::ranges::equal(sums.integers.as<int64_t>(), integers));
    EXPECT_TRUE(std::ranges::equal(sums.values.as<float>(), values));
  });
}

// --- Rounding. ---

// All 2^k, sums of two and three of them, and random integers, to get ties and their neighbours.
std::vector<int64_t> awkward_integers() {
  std::vector<int64_t> integers = {0, INT64_MAX, -INT64_MAX};
  for (int high = 0; high < 63; ++high) {
    for (int middle = 0; middle <= high; ++middle) {
      for (const int64_t low : {-1, 0, 1}) {
        const int64_t integer = (int64_t{1} << high) + (int64_t{1} << middle) / 2 + low;
        integers.insert(integers.end(), {integer, -integer});
      }
    }
  }
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    integers.push_back(static_cast<int64_t>(random()) >> random() % 63);
  }
  return integers;
}

TEST(ExactSums, ValuesAreRoundedOnce) {
  const std::vector<int64_t> integers = awkward_integers();
  const auto n = static_cast<int64_t>(integers.size());
  const Tensor sums = Tensor::empty(test_memory(), {n}, DType::kI64, MemoryClass::kGradients);
  std::ranges::copy(integers, sums.data<int64_t>());
  for_each_device([&](Device device) {
    Rank rank(device, 1, 1);
    // Below -64 some overflow, above 126 some are subnormal, and the last turns all into zero.
    for (int32_t exponent : {-100, -66, 0, 40, 126, 150, 173, 200, 213, 1022}) {
      rank.exact.set_exponents({exponent});
      rank.exact.begin_step();
      const Tensor values = rank.empty(n, DType::kF32);
      rank.exact.dequantise(to_device(sums, device), Segments{{0, 0, n}}, values);
      const Tensor got = to_host(values);
      for (int64_t i = 0; i < n; ++i) {
        const float expected = exact_value(integers[i], exponent);
        // As bits, but zero has no sign here.
        ASSERT_EQ(std::bit_cast<int32_t>(got.data<float>()[i] + 0.0f),
                  std::bit_cast<int32_t>(expected + 0.0f))
            << integers[i] << " 2^-" << exponent;
      }
    }
  });
}

TEST(ExactSums, LeavesAreRoundedToNearestTiesToEven) {
  for_each_device([&](Device device) {
    Rank rank(device, 6, 1);
    rank.exact.set_exponents({0, 0, 1, 1, 0, 0});
    rank.step(std::vector<float>{0.5f, 1.5f, -0.75f, 1.25f, 0x1.8p-1f, -2.5f});
    EXPECT_TRUE(
        std::ranges::equal(rank.last_sums.as<int64_t>(), std::vector<int64_t>{0, 2, -2, 2, 1, -2}));
  });
}

// --- Range. ---

TEST(ExactSums, TheFirstStepRunsTwice) {
  for_each_device([&](Device device) {
    for (float g : {1.0f, -3e38f, 0x1p-149f, -0x1.8p-140f}) {
      Rank rank(device, 1, 12);
      EXPECT_EQ(rank.step(g), Verdict::kAgain);
      EXPECT_EQ(rank.last.data<float>()[0], 0);
      EXPECT_EQ(rank.step(g), Verdict::kGood);
      EXPECT_EQ(rank.last.data<float>()[0], g);
      EXPECT_EQ(rank.step(g), Verdict::kGood);
    }
  });
}

TEST(ExactSums, ZerosFitAndKeepTheExponent) {
  for_each_device([&](Device device) {
    Rank rank(device, 2, 3);
    const int32_t unknown = ExactSums::kUnknown;
    EXPECT_EQ(rank.step(std::vector<float>{0, -0.0f}), Verdict::kGood);
    EXPECT_EQ(rank.exact.exponents(), (std::vector<int32_t>{unknown, unknown}));
    Timeline timeline;
    EXPECT_EQ(
        rank.exact.squared_norm(
            rank.collectives, std::vector<Tensor>{rank.there(std::vector<float>{0, 0})}, timeline),
        0);
    EXPECT_EQ(rank.step(std::vector<float>{1, -0.0f}), Verdict::kAgain);
    EXPECT_EQ(rank.step(std::vector<float>{1, 0}), Verdict::kGood);
    const std::vector<int32_t> found = rank.exact.exponents();
    EXPECT_EQ(found, (std::vector<int32_t>{60 - 11, unknown}));
    EXPECT_EQ(rank.step(std::vector<float>{0, 0}), Verdict::kGood);
    EXPECT_EQ(rank.exact.exponents(), found);
    // Bits: a sum of zeros is +0.
    EXPECT_EQ(rank.last_sums.as<int64_t>()[1], 0);
    EXPECT_FALSE(std::signbit(rank.last.data<float>()[1]));
  });
}

// 1 becomes 2^(h-11), so 2^11 reaches the limit, and 2^-15 lies 2^26 below it.
TEST(ExactSums, EdgesOfTheRange) {
  const float below = std::nextafter(0x1p11f, 0.0f), too_small = std::nextafter(0x1p-15f, 0.0f);
  const std::pair<float, Verdict> cases[] = {
      {below, Verdict::kGood},      {-below, Verdict::kGood},      {0x1p11f, Verdict::kAgain},
      {-0x1p11f, Verdict::kAgain},  {0x1p-15f, Verdict::kGood},    {-0x1p-15f, Verdict::kGood},
      {too_small, Verdict::kAgain}, {-too_small, Verdict::kAgain}, {0x1p-20f, Verdict::kAgain}};
  for_each_device([&](Device device) {
    for (int64_t leaves : {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{1} << 24}) {
      for (const auto& [g, verdict] : cases) {
        Rank rank(device, 1, leaves);
        rank.step(1);
        ASSERT_EQ(rank.step(1), Verdict::kGood);
        const int32_t exponent = rank.exact.exponents()[0];
        ASSERT_EQ(rank.step(g), verdict) << g << " of " << leaves << " leaves";
        const bool misfit = std::fabs(g) >= 0x1p11f;
        EXPECT_EQ(rank.last_sums.as<int64_t>()[0], misfit ? 0 : exact_integer(g, exponent));
        EXPECT_EQ(rank.step(g), Verdict::kGood);  // with the exponent of this very gradient
        EXPECT_EQ(rank.last.data<float>()[0], g);
      }
    }
  });
}

TEST(ExactSums, ExponentsFollowTheLeaves) {
  for_each_device([&](Device device) {
    Rank rank(device, 1, 2);
    float g = 0x1.fp-90f;
    EXPECT_EQ(rank.step(g), Verdict::kAgain);
    for (const float growth : {0x1p10f, 0x1p-15f}) {  // whatever the exponent was before
      for (int step = 0; step < 12; ++step, g *= growth) {
        EXPECT_EQ(rank.step(g), Verdict::kGood);
        EXPECT_EQ(rank.last.data<float>()[0], g);
      }
      g /= growth;
    }
  });
}

// In each warp and block of a GPU, and in each thread of a CPU.
TEST(ExactSums, TheLargestCountsWhereverItLies) {
  constexpr int64_t kMany = 5000;
  const Segments all = {{0, 0, kMany}};
  for_each_device([&](Device device) {
    Rank alone(device, 1, 1);
    alone.step(3);
    ASSERT_EQ(alone.step(3), Verdict::kGood);
    for (const size_t place : {0, 31, 32, 255, 256, 1100, 2047, 2048, 4095, 4999}) {
      std::vector<float> leaf(kMany, 1e-6f);
      leaf[place] = -3;
      Rank rank(device, 1, 1);
      rank.exact.begin_step();
      rank.exact.quantise(rank.there(leaf), all, rank.used(kMany, DType::kI64), false);
      EXPECT_EQ(rank.exact.judge(rank.control), Verdict::kAgain);
      rank.exact.begin_step();
      EXPECT_EQ(rank.exact.exponents(), alone.exact.exponents()) << "element " << place;
    }
  });
}

// The largest allowed number of leaves, each as large as allowed: the sum does not overflow.
TEST(ExactSums, AllLeavesAtTheLimitFit) {
  const float most = std::nextafter(0x1p11f, 0.0f);
  for_each_device([&](Device device) {
    for (int64_t leaves : {1, 2, 3, 4, 31}) {
      Rank rank(device, 1, leaves);
      rank.step(1);
      ASSERT_EQ(rank.step(1), Verdict::kGood);
      rank.exact.begin_step();
      const Segments all = {{0, 0, 1}};
      const Tensor sums = rank.empty(1, DType::kI64), values = rank.empty(1, DType::kF32);
      for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        rank.exact.quantise(rank.there(std::vector<float>{-most}), all, sums, leaf > 0);
      }
      EXPECT_EQ(rank.exact.judge(rank.control), Verdict::kGood);
      rank.exact.dequantise(sums, all, values);
      EXPECT_EQ(to_host(values).data<float>()[0],
                static_cast<float>(-static_cast<double>(leaves) * most));
    }
  });
}

TEST(ExactSums, WhatIsNotFiniteIsSaidAndChangesNoExponent) {
  for_each_device([&](Device device) {
    for (float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      Rank rank(device, 2, 2);
      EXPECT_EQ(rank.step(std::vector<float>{1, bad}), Verdict::kNonFinite);
      EXPECT_EQ(rank.exact.exponents(), std::vector<int32_t>(2, ExactSums::kUnknown));
      EXPECT_EQ(rank.step(std::vector<float>{1, 5}), Verdict::kAgain);
      EXPECT_EQ(rank.step(std::vector<float>{1, 5}), Verdict::kGood);
      const std::vector<int32_t> found = rank.exact.exponents();
      EXPECT_EQ(rank.step(std::vector<float>{bad, 1e20f}), Verdict::kNonFinite);
      EXPECT_EQ(rank.last_sums.as<int64_t>()[0], 0);
      EXPECT_EQ(rank.exact.exponents(), found);
      Timeline timeline;
      EXPECT_THROW(rank.exact.squared_norm(rank.collectives, {}, timeline), Error);
      EXPECT_EQ(rank.step(std::vector<float>{1, 5}), Verdict::kGood);
    }
  });
}

TEST(ExactSums, ExponentsSurviveACheckpoint) {
  for_each_device([&](Device device) {
    Rank saved(device, 3, 2);
    const std::vector<float> first = {1, 1e-20f, 0}, second = {1.7f, -1.1e-20f, 0};
    saved.step(first);
    ASSERT_EQ(saved.step(first), Verdict::kGood);
    Rank restored(device, 3, 2);
    restored.exact.set_exponents(saved.exact.exponents());
    for (Rank* rank : {&saved, &restored}) {
      EXPECT_EQ(rank->step(second), Verdict::kGood);
    }
    EXPECT_TRUE(same_bits(saved.last_sums, restored.last_sums));
    EXPECT_EQ(saved.exact.exponents(), restored.exact.exponents());
  });
  Rank rank(Device::kCpu, 2, 1);
  EXPECT_THROW(rank.exact.set_exponents({1}), Error);
  EXPECT_THROW(rank.exact.set_exponents({1, 1023}), Error);
  EXPECT_THROW(rank.exact.set_exponents({1, -1023}), Error);
}

TEST(ExactSums, ContractsAreChecked) {
  Rank rank(Device::kCpu, 2, 1);
  const Tensor leaf = host_tensor(std::vector<float>(4, 1.0f));
  const Tensor sums = rank.empty(4, DType::kI64);
  rank.exact.begin_step();
  for (const Segments& wrong : {Segments{{2, 0, 1}}, Segments{{-1, 0, 1}}, Segments{{0, 0, 5}},
                                Segments{{0, 2, 1}, {1, 1, 1}}, Segments{{0, 0, -1}}}) {
    EXPECT_THROW(rank.exact.quantise(leaf, wrong, sums, false), Error);
    EXPECT_THROW(rank.exact.dequantise(sums, wrong, leaf), Error);
  }
  EXPECT_THROW(rank.exact.quantise(leaf, {}, rank.empty(3, DType::kI64), false), Error);
  for (int64_t leaves : {int64_t{0}, (int64_t{1} << 24) + 1}) {
    EXPECT_THROW(ExactSums(test_stream(), test_memory(), 1, leaves), Error) << leaves;
  }
}

}  // namespace
}  // namespace tandem::testing

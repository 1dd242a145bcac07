#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "src/data/sampler.h"

namespace tandem {
namespace {

std::vector<int64_t> epoch_of(uint64_t seed, int64_t size, int64_t epoch) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < size; ++i) {
    const Sample sample = sample_at(seed, size, epoch * size + i);
    EXPECT_EQ(sample.epoch, epoch);
    indices.push_back(sample.index);
  }
  return indices;
}

TEST(Permutation, IsOneForEverySize) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= 70; ++size) {
    sizes.push_back(size);
  }
  sizes.insert(sizes.end(), {127, 128, 129, 1000, 4096, 50000});
  for (const int64_t size : sizes) {
    std::vector<bool> seen(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      const int64_t to = permuted(i, size, {1, static_cast<uint32_t>(size)});
      ASSERT_TRUE(to >= 0 && to < size) << size;
      ASSERT_FALSE(seen[static_cast<size_t>(to)]) << size;
      seen[static_cast<size_t>(to)] = true;
    }
  }
}

TEST(Permutation, ReachesHugeSizesWithoutStoringThem) {
  const int64_t size = int64_t{1} << 40;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t to = permuted(i * 1000003, size - 3, {5, 6});
    EXPECT_TRUE(to >= 0 && to < size - 3);
    seen.insert(to);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

// Every place gets every value equally often. Chi-square over 60 x 60 cells with 6000 permutations:
// 59^2 = 3481 degrees of freedom, standard deviation sqrt(2 * 3481) = 83; five deviations are 417.
// The keys are fixed, so the test gives the same number each time.
TEST(Permutation, SpreadsEvenly) {
  constexpr int64_t kSize = 60;
  constexpr int64_t kTrials = 6000;
  std::vector<int64_t> counts(kSize * kSize);
  for (int64_t trial = 0; trial < kTrials; ++trial) {
    const PhiloxKey key{static_cast<uint32_t>(trial), 99};
    for (int64_t i = 0; i < kSize; ++i) {
      ++counts[static_cast<size_t>(i * kSize + permuted(i, kSize, key))];
    }
  }
  const double expected = static_cast<double>(kTrials) / kSize;
  double chi_square = 0;
  for (const int64_t count : counts) {
    chi_square += std::pow(static_cast<double>(count) - expected, 2) / expected;
  }
  EXPECT_NEAR(chi_square, 59.0 * 59.0, 417.0);
}

// Neighbours remain neighbours no more often than by chance. The number of i with p(i + 1) = p(i) +
// 1 in a random permutation is Poisson with mean 1, so 200 permutations give 200 with standard
// deviation 14.
TEST(Permutation, LeavesNoRuns) {
  int64_t runs = 0;
  for (uint32_t trial = 0; trial < 200; ++trial) {
    const PhiloxKey key{trial, 3};
    for (int64_t i = 0; i + 1 < 1000; ++i) {
      runs += permuted(i + 1, 1000, key) == permuted(i, 1000, key) + 1 ? 1 : 0;
    }
  }
  EXPECT_NEAR(static_cast<double>(runs), 200.0, 70.0);
}

TEST(SampleOrder, VisitsEachSampleOncePerEpoch) {
  for (const int64_t size : {1, 2, 7, 100}) {
    for (const int64_t epoch : {0, 1, 5}) {
      std::vector<int64_t> indices = epoch_of(42, size, epoch);
      std::sort(indices.begin(), indices.end());
      for (int64_t i = 0; i < size; ++i) {
        EXPECT_EQ(indices[static_cast<size_t>(i)], i);
      }
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndEpochAlone) {
  EXPECT_EQ(epoch_of(42, 1000, 3), epoch_of(42, 1000, 3));
  EXPECT_NE(epoch_of(42, 1000, 3), epoch_of(42, 1000, 4));
  EXPECT_NE(epoch_of(42, 1000, 3), epoch_of(43, 1000, 3));
  EXPECT_NE(epoch_of(42, 1000, 3), epoch_of(42 + (uint64_t{1} << 32), 1000, 3));
}

TEST(TextWindows, NeverOverlapOrLeaveTheStream) {
  for (const int64_t context : {1, 2, 5, 64}) {
    for (int64_t tokens = context + 1; tokens < 6 * context + 3; ++tokens) {
      const int64_t count = training_windows(tokens, context);
      ASSERT_GE(count, 1);
      // What an epoch leaves out is less than two windows.
      EXPECT_LT(tokens - 1 - count * context, 2 * context);
      for (int64_t epoch = 0; epoch < 20; ++epoch) {
        const int64_t offset = training_window_start(9, epoch, 0, tokens, context);
        EXPECT_GE(offset, 0);
        EXPECT_LT(offset, context);
        for (int64_t i = 0; i < count; ++i) {
          EXPECT_EQ(training_window_start(9, epoch, i, tokens, context), offset + i * context);
        }
        // The last window and its target lie inside.
        EXPECT_LE(offset + count * context + 1, tokens);
      }
    }
    EXPECT_EQ(training_windows(context, context), 0);
  }
}

TEST(TextWindows, EveryOffsetOccurs) {
  std::set<int64_t> offsets;
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    offsets.insert(training_window_start(1, epoch, 0, 1001, 8));
  }
  EXPECT_EQ(offsets, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(TextWindows, ValidationPredictsEveryTokenButTheFirst) {
  EXPECT_EQ(validation_windows(0, 4), 0);
  EXPECT_EQ(validation_windows(1, 4), 0);
  EXPECT_EQ(validation_windows(2, 4), 1);
  EXPECT_EQ(validation_windows(5, 4), 1);
  EXPECT_EQ(validation_windows(6, 4), 2);
  EXPECT_EQ(validation_windows(9, 4), 2);
  EXPECT_EQ(validation_windows(10, 4), 3);
}

}  // namespace
}  // namespace tandem

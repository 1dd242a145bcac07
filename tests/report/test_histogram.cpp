#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/report/writers/histogram.h"

namespace tandem {
namespace {

using Values = std::vector<float>;

TEST(Histogram, BinsHoldWhatLiesBelowTheirLimits) {
  Histogram histogram;
  histogram.add(Values{1.0F, 1.1F, 1.125F, -0.5F, 0.0F, -0.0F, 1e-12F});
  const Histogram::Bins bins = histogram.bins();
  // Eight bins from 1 to 2; negative bins end at their smallest magnitude.
  EXPECT_EQ(bins.least, -0.5625);
  EXPECT_EQ(bins.limits.front(), -0.5);
  EXPECT_EQ(bins.counts.front(), 1);
  EXPECT_EQ(bins.limits.back(), 1.25);
  EXPECT_EQ(bins.counts.back(), 1);                   // 1.125
  EXPECT_EQ(bins.counts[bins.counts.size() - 2], 2);  // 1.0 and 1.1
  const auto zero = std::ranges::find(bins.limits, std::ldexp(1.0, -32));
  ASSERT_NE(zero, bins.limits.end());
  EXPECT_EQ(bins.counts[static_cast<size_t>(zero - bins.limits.begin())], 3);
  EXPECT_TRUE(std::ranges::is_sorted(bins.limits));
  EXPECT_EQ(std::accumulate(bins.counts.begin(), bins.counts.end(), 0.0), 7);
}

TEST(Histogram, EveryValueIsWithinItsBin) {
  for (float value = 3e-9F; value < 60000; value *= 1.37F) {
    for (const float sign : {1.0F, -1.0F}) {
      Histogram histogram;
      histogram.add(Values{sign * value});
      const Histogram::Bins bins = histogram.bins();
      ASSERT_EQ(bins.limits.size(), 1U);
      EXPECT_LE(bins.least, sign * value);
      EXPECT_GE(bins.limits[0], sign * value);
      EXPECT_LE(bins.limits[0] - bins.least, value / 7);  // an eighth of the power of two below
    }
  }
}

TEST(Histogram, SumsOfPartsAreThoseOfTheWhole) {
  Histogram one, other, whole;
  one.add(Values{1, 2, 3});
  other.add(Values{-4, 0.5}, 2);
  whole.add(Values{1, 2, 3, -8, 1});
  for (size_t i = 0; i < one.sums().size(); ++i) {
    one.sums()[i] += other.sums()[i];
  }
  EXPECT_EQ(one.sums(), whole.sums());
  EXPECT_EQ(whole.count(), 5);
  EXPECT_EQ(whole.sum(), -1);
  EXPECT_EQ(whole.sum_squares(), 79);
}

TEST(Histogram, ExtremesAndNothing) {
  Histogram histogram;
  EXPECT_TRUE(histogram.bins().limits.empty());
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  histogram.add(Values{std::nanf(""), kInfinite, -kInfinite});
  EXPECT_EQ(histogram.count(), 0);
  histogram.add(Values{1e30F, -1e30F});
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_EQ(histogram.bins().least, -65536);
  EXPECT_EQ(histogram.bins().limits.back(), 65536);
}

}  // namespace
}  // namespace tandem

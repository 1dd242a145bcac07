#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "src/core/error.h"
#include "src/inference/token_sampler.h"

namespace tandem {
namespace {

const std::vector<float> kLogits = {0.0f, std::log(2.0f), std::log(4.0f),
                                    std::log(1.0f)};  // 1/8, 2/8, 4/8, 1/8

std::vector<int> counts(const SamplingOptions& options, int draws) {
  TokenSampler sampler(options);
  std::vector<int> count(kLogits.size());
  for (int i = 0; i < draws; ++i) {
    ++count[static_cast<size_t>(sampler.pick(kLogits))];
  }
  return count;
}

// Each count is binomial: 5 standard deviations of 8000 draws are at most 5 * sqrt(8000 / 4) = 224.
TEST(TokenSampler, FollowsTheProbabilities) {
  const std::vector<int> count = counts({.temperature = 1}, 8000);
  EXPECT_NEAR(count[0], 1000, 224);
  EXPECT_NEAR(count[1], 2000, 224);
  EXPECT_NEAR(count[2], 4000, 224);
  EXPECT_NEAR(count[3], 1000, 224);
}

// At temperature 1/2 the probabilities are squared: 1, 4, 16, 1 of 22.
TEST(TokenSampler, TemperatureSharpens) {
  EXPECT_NEAR(counts({.temperature = 0.5}, 8000)[2], 8000 * 16 / 22, 224);
}

TEST(TokenSampler, LimitsTheChoice) {
  EXPECT_EQ(counts({.temperature = 0}, 50), (std::vector<int>{0, 0, 50, 0}));
  EXPECT_EQ(counts({.temperature = 1, .top_k = 1}, 50), (std::vector<int>{0, 0, 50, 0}));
  const std::vector<int> two = counts({.temperature = 1, .top_k = 2}, 3000);
  EXPECT_EQ(two[0] + two[3], 0);
  EXPECT_NEAR(two[2], 2000, 137);
  // The first token alone reaches 0.5; a little more needs the second, too.
  EXPECT_EQ(counts({.temperature = 1, .top_p = 0.5}, 50)[2], 50);
  EXPECT_GT(counts({.temperature = 1, .top_p = 0.51}, 50)[1], 0);
}

TEST(TokenSampler, RefusesWhatIsNotFinite) {
  TokenSampler sampler({});
  EXPECT_THROW(sampler.pick(std::vector<float>{0.0f, NAN}), Error);
}

}  // namespace
}  // namespace tandem

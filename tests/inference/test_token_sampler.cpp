#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
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
  EXPECT_NEAR(counts({.temperature = 0.5}, 8000)[2], 8000 * 16.0 / 22, 224);
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
  // Within the nucleus of 4/8 and 2/8 the odds stay 2 to 1: 5 standard deviations of 3000 draws
  // are 5 * sqrt(3000 * 2 / 9) = 129.
  const std::vector<int> nucleus = counts({.temperature = 1, .top_p = 0.7}, 3000);
  EXPECT_EQ(nucleus[0] + nucleus[3], 0);
  EXPECT_NEAR(nucleus[2], 2000, 129);
}

// Weights of 1 add up without rounding, so two of four equal tokens are just enough for 0.5.
TEST(TokenSampler, ANucleusEndsWhereItIsEnough) {
  TokenSampler sampler({.temperature = 1, .top_p = 0.5});
  std::set<int32_t> picked;
  for (int i = 0; i < 200; ++i) {  // one of two is missed with a probability of 2^-199
    picked.insert(sampler.pick(std::vector<float>(4, 0.0f)));
  }
  EXPECT_EQ(picked, (std::set<int32_t>{0, 1}));
}

// The definition, with a sort of the whole vocabulary: the tokens that top_k and top_p leave.
std::set<int32_t> allowed(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) {
    order.resize(static_cast<size_t>(options.top_k));
  }
  const auto weight = [&](int32_t token) { return std::exp(logits[token] / options.temperature); };
  double total = 0, nucleus = 0;
  for (const int32_t token : order) {
    total += weight(token);
  }
  std::set<int32_t> kept;
  for (auto token = order.begin(); token != order.end() && nucleus < options.top_p * total;
       ++token) {
    nucleus += weight(*token);
    kept.insert(*token);
  }
  return kept;
}

// Every allowed token has a probability of at least 1 / 140; 4000 draws miss one of them with a
// probability below 140 * exp(-4000 / 140) = 6e-11. Many logits are equal: lower indices go first.
TEST(TokenSampler, PicksEveryAllowedTokenAndNoOther) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i * 37 % 10) / 10.0f;
  }
  for (const int64_t top_k : {0, 1, 7, 55, 100}) {
    for (const double top_p : {1e-6, 0.3, 0.77, 1.0}) {
      const SamplingOptions options{.temperature = 1.5, .top_k = top_k, .top_p = top_p};
      TokenSampler sampler(options);
      std::set<int32_t> picked;
      for (int i = 0; i < 4000; ++i) {
        picked.insert(sampler.pick(logits));
      }
      EXPECT_EQ(picked, allowed(logits, options)) << "top_k " << top_k << " top_p " << top_p;
    }
  }
}

// Of 64 choices among 1000 equal tokens, two texts share about 0.06 at the same place.
TEST(TokenSampler, TextsOfOneSeedDiffer) {
  const std::vector<float> equal(1000, 0.0f);
  std::vector<std::vector<int32_t>> texts;
  for (uint64_t text : {0, 1, 1, 2}) {
    TokenSampler sampler({.seed = 7}, text);
    texts.emplace_back();
    for (int i = 0; i < 64; ++i) {
      texts.back().push_back(sampler.pick(equal));
    }
  }
  EXPECT_EQ(texts[1], texts[2]);
  for (const auto& [a, b] : {std::pair{0, 1}, {0, 3}, {1, 3}}) {
    int same = 0;
    for (size_t i = 0; i < 64; ++i) {
      same += texts[static_cast<size_t>(a)][i] == texts[static_cast<size_t>(b)][i];
    }
    EXPECT_LT(same, 4);
  }
}

TEST(TokenSampler, RefusesWhatIsNotFinite) {
  TokenSampler sampler({});
  EXPECT_THROW(sampler.pick(std::vector<float>{0.0f, NAN}), Error);
}

}  // namespace
}  // namespace tandem

// Chooses the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

struct SamplingOptions {
  double temperature = 0.8;  // 0: the likeliest token; of equals, the lowest index
  int64_t top_k = 0;         // 0: all
  double top_p = 1;          // nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751)
  int64_t seed = 1;
};

// The logarithm of the sum of the exponentials of logits: a token's logit less this is its
// log-probability. Error kNumerical when a logit is not finite.
double log_sum_exp(std::span<const float> logits);

class TokenSampler {
 public:
  // Texts of one seed differ by their number, below 2^32.
  explicit TokenSampler(const SamplingOptions& options, uint64_t text = 0)
      : options_(options), next_(text << 32) {}
  // logits [V]; the n-th choice is a pure function of (seed, text, n, logits). Error kNumerical
  // when a logit is not finite.
  int32_t pick(std::span<const float> logits);

 private:
  // Keeps the fewest of the likeliest tokens whose weights add up to `enough`; returns their sum.
  template <typename Likelier>
  double keep_nucleus(double enough, const Likelier& likelier);

  SamplingOptions options_;
  uint64_t next_;                  // counts the choices, from text * 2^32
  std::vector<int32_t> tokens_{};  // those that may be picked
  std::vector<double> weights_{};  // [V], in proportion to the probabilities of tokens_
};

}  // namespace tandem

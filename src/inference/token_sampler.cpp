#include "src/inference/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/core/rng.h"

namespace tandem {

namespace {

void require_finite(std::span<const float> logits) {
  if (!std::ranges::all_of(logits, [](float value) { return std::isfinite(value); })) {
    fail(ExitCode::kNumerical, "the model's logits are not finite; use an earlier checkpoint");
  }
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  require_finite(logits);
  const double largest = *std::ranges::max_element(logits);
  return largest + std::log(sum_of(logits, [&](float logit) { return std::exp(logit - largest); }));
}

int32_t TokenSampler::pick(std::span<const float> logits) {
  require_finite(logits);
  const PhiloxCounter words =
      random_words(random_key(static_cast<uint64_t>(options_.seed), RandomUse::kGenerate), next_++);
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  tokens_.resize(logits.size());
  std::iota(tokens_.begin(), tokens_.end(), 0);
  const int32_t likeliest = *std::ranges::min_element(tokens_, likelier);
  if (options_.temperature == 0) {
    return likeliest;
  }
  if (options_.top_k > 0 && options_.top_k < std::ssize(tokens_)) {
    std::ranges::partial_sort(tokens_, tokens_.begin() + options_.top_k, likelier);
    tokens_.resize(static_cast<size_t>(options_.top_k));
  }
  weights_.resize(logits.size());
  double total = 0;
  for (const int32_t token : tokens_) {
    weights_[token] = std::exp((logits[token] - logits[likeliest]) / options_.temperature);
    total += weights_[token];
  }
  if (options_.top_p < 1) {
    total = keep_nucleus(options_.top_p * total, likelier);
  }
  double left = uniform_from(words[0]) * total;
  int32_t picked = likeliest;
  for (auto token = tokens_.begin(); token != tokens_.end() && left >= 0; ++token) {
    if (weights_[*token] > 0) {  // rounding must not let the draw end on one that cannot be
      picked = *token;
      left -= weights_[picked];
    }
  }
  return picked;
}

// A heap finds the likeliest tokens in order without sorting those that are left out.
template <typename Likelier>
double TokenSampler::keep_nucleus(double enough, const Likelier& likelier) {
  const auto after = [&](int32_t a, int32_t b) { return likelier(b, a); };
  std::ranges::make_heap(tokens_, after);
  auto rest = tokens_.end();
  double weight = 0;
  do {
    std::ranges::pop_heap(tokens_.begin(), rest, after);
    weight += weights_[*--rest];
  } while (weight < enough && rest != tokens_.begin());
  tokens_.erase(tokens_.begin(), rest);
  return weight;
}

}  // namespace tandem

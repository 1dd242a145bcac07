#include "src/inference/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/core/error.h"
#include "src/core/rng.h"

namespace tandem {

int32_t TokenSampler::pick(std::span<const float> logits) {
  if (!std::ranges::all_of(logits, [](float value) { return std::isfinite(value); })) {
    fail(ExitCode::kNumerical,
         "generate: the model's logits are not finite; use an earlier checkpoint");
  }
  const PhiloxCounter words = random_words(
      random_key(static_cast<uint64_t>(options_.seed), RandomUse::kGenerate), picked_++);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options_.temperature == 0) {
    return order[0];
  }
  const size_t limit = options_.top_k > 0
                           ? std::min<size_t>(order.size(), static_cast<size_t>(options_.top_k))
                           : order.size();
  std::vector<double> weights;
  double total = 0;
  for (size_t i = 0; i < limit; ++i) {
    weights.push_back(std::exp((logits[order[i]] - logits[order[0]]) / options_.temperature));
    total += weights.back();
  }
  // The nucleus: the fewest of the likeliest tokens whose probabilities add up to top_p.
  double nucleus = 0;
  size_t kept = 0;
  while (kept < limit && (kept == 0 || nucleus < options_.top_p * total)) {
    nucleus += weights[kept++];
  }
  double left = uniform_from(words[0]) * nucleus;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weights[i];
    if (left < 0) {
      return order[i];
    }
  }
  return order[kept - 1];
}

}  // namespace tandem

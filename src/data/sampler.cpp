#include "src/data/sampler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "src/core/error.h"

namespace tandem {
namespace {

// Rounds of the network. Four make a pseudo-random permutation of large sets (Luby and Rackoff
// 1988); the halves here may have only a few bits, where more rounds are needed to mix well.
constexpr int kRounds = 8;

constexpr uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }

uint64_t encrypt(uint64_t value, int left_bits, int right_bits, PhiloxKey key) {
  uint64_t left = value >> right_bits;
  uint64_t right = value & mask(right_bits);
  // Each round swaps the halves and their widths. After an even number of rounds each half is back
  // in its own place.
  for (uint32_t round = 0; round < kRounds; ++round) {
    const PhiloxCounter words = random_words(key, right, round);
    const uint64_t mixed = (uint64_t{words[0]} << 32 | words[1]) & mask(left_bits);
    const uint64_t next = left ^ mixed;
    left = right;
    right = next;
    std::swap(left_bits, right_bits);
  }
  return left << right_bits | right;
}

}  // namespace

int64_t permuted(int64_t index, int64_t size, PhiloxKey key) {
  require(size > 0, "permuted: nothing to permute");
  const auto end = static_cast<uint64_t>(size);
  const int bits = std::max(2, static_cast<int>(std::bit_width(end - 1)));
  auto value = static_cast<uint64_t>(index);
  do {
    value = encrypt(value, bits / 2, bits - bits / 2, key);
  } while (value >= end);
  return static_cast<int64_t>(value);
}

Sample sample_at(uint64_t seed, int64_t samples_per_epoch, int64_t position) {
  require(samples_per_epoch > 0, "sample_at: no samples");
  const int64_t epoch = position / samples_per_epoch;
  const PhiloxCounter words = random_words(
      random_key(seed, RandomUse::kSampleOrder, kPermutationStream), static_cast<uint64_t>(epoch));
  const PhiloxKey key{words[0], words[1]};
  return {epoch, permuted(position % samples_per_epoch, samples_per_epoch, key)};
}

int64_t training_windows(int64_t tokens, int64_t context) {
  if (tokens < context + 1) {
    return 0;
  }
  // The largest number that fits at every offset below `context`: offset + windows * context <
  // tokens.
  return std::max<int64_t>(1, (tokens - context) / context);
}

int64_t training_window_start(uint64_t seed, int64_t epoch, int64_t index, int64_t tokens,
                              int64_t context) {
  // In a stream shorter than two windows the one window has fewer places to begin.
  const int64_t offsets = std::min(context, tokens - training_windows(tokens, context) * context);
  const PhiloxCounter words = random_words(random_key(seed, RandomUse::kSampleOrder, kOffsetStream),
                                           static_cast<uint64_t>(epoch));
  const uint64_t offset = (uint64_t{words[0]} * static_cast<uint64_t>(offsets)) >> 32;
  return static_cast<int64_t>(offset) + index * context;
}

int64_t validation_windows(int64_t tokens, int64_t context) {
  return tokens < 2 ? 0 : (tokens - 1 + context - 1) / context;
}

}  // namespace tandem

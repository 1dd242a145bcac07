#include "src/data/augment.h"

#include "src/core/rng.h"

namespace tandem {
namespace {

constexpr int32_t kPadding = 4;

// Uniform in [-kPadding, kPadding].
int32_t shift_from(uint32_t word) {
  return static_cast<int32_t>((uint64_t{word} * (2 * kPadding + 1)) >> 32) - kPadding;
}

}  // namespace

ImagePlacement random_crop_and_flip(uint64_t seed, int64_t epoch, int64_t position) {
  const PhiloxCounter words =
      random_words(random_key(seed, RandomUse::kAugment), static_cast<uint64_t>(position),
                   static_cast<uint32_t>(epoch));
  return {shift_from(words[0]), shift_from(words[1]), static_cast<int32_t>(words[2] & 1u)};
}

}  // namespace tandem

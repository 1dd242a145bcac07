// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3"). A number is a pure function of (key, counter), so initial weights and dropout
// masks are keyed by what they belong to. They do not depend on the number of ranks or on the order
// of calls.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "src/core/host_device.h"

namespace tandem {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxCounter = std::array<uint32_t, 4>;

inline constexpr int kPhiloxRounds = 10;

// The counter is four variables and not an array, so that loops over this function vectorise.
TANDEM_HOST_DEVICE inline void philox_round(const PhiloxKey& key, uint32_t& c0, uint32_t& c1,
                                            uint32_t& c2, uint32_t& c3) {
  const uint64_t a = uint64_t{0xD2511F53u} * c0;
  const uint64_t b = uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key[0];
  c1 = static_cast<uint32_t>(b);
  c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key[1];
  c3 = static_cast<uint32_t>(a);
}

TANDEM_HOST_DEVICE inline PhiloxKey philox_next_key(PhiloxKey key) {
  return {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
}

// Four uniform 32-bit words for one counter.
TANDEM_HOST_DEVICE inline PhiloxCounter philox(PhiloxKey key, PhiloxCounter counter) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(key, counter[0], counter[1], counter[2], counter[3]);
    key = philox_next_key(key);
  }
  return counter;
}

// Uniform in [0, 1) with 24 bits, exact in f32.
TANDEM_HOST_DEVICE inline float uniform_from(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// What random numbers are used for. It is part of the key, so that two uses never share a stream.
enum class RandomUse : uint32_t {
  kInit = 1,
  kDropout = 2,
  kSampleOrder = 3,
  kAugment = 4,
  kGenerate = 5,
  kRound = 6
};

// Key of one named stream of numbers under one seed.
TANDEM_HOST_DEVICE inline PhiloxKey random_key(uint64_t seed, RandomUse use, uint32_t stream = 0) {
  const PhiloxCounter mixed =
      philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
             {static_cast<uint32_t>(use), stream, 0, 0});
  return {mixed[0], mixed[1]};
}

// Four random words of the stream `key`, for the counter (index, x, y).
TANDEM_HOST_DEVICE inline PhiloxCounter random_words(PhiloxKey key, uint64_t index, uint32_t x = 0,
                                                     uint32_t y = 0) {
  return philox(key, {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), x, y});
}

// Two standard normal numbers from two words (Box and Muller 1958).
inline std::array<double, 2> normal_from(uint32_t a, uint32_t b) {
  const double radius = std::sqrt(-2.0 * std::log((a + 1.0) * 0x1p-32));
  const double angle = 6.283185307179586 * (b * 0x1p-32);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace tandem

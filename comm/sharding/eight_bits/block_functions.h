// The arithmetic of blocks.h, for both devices. A lane has the elements of one word of a block.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "comm/sharding/eight_bits/blocks.h"
#include "src/core/math.h"

namespace tandem::kernels {

inline constexpr int kBlockLanes = 32;
inline constexpr int kLaneElements = 4;
inline constexpr int32_t kBlockInfinity = 0x7f800000;  // its bits; those of NaN are above
inline constexpr uint32_t kNearest = 1u << 31;         // a word that rounds to nearest: 0.5

// The scale of a block whose largest magnitude has these bits; NaN if it is not finite.
TANDEM_HOST_DEVICE inline float block_scale(int32_t largest) {
  constexpr int32_t kLow = 0xff;
  const float scale = std::fmax(std::bit_cast<float>(largest) / 127.0f, 0x1p-126f);
  return std::bit_cast<float>(
      largest < kBlockInfinity ? (std::bit_cast<int32_t>(scale) + kLow) & ~kLow : 0x7fc00000);
}

TANDEM_HOST_DEVICE inline BlockNoise noise_of(const StepNumbers& numbers, uint32_t rank) {
  return {random_key(numbers.seed, RandomUse::kRound, rank), static_cast<uint32_t>(numbers.step),
          static_cast<uint32_t>(numbers.micro_step)};
}

// A lane's elements have the random words of this counter. The turn is in its highest bits.
TANDEM_HOST_DEVICE inline uint64_t noise_counter(uint64_t first, uint32_t turn, int64_t block,
                                                 int lane) {
  const uint64_t index = (first / kBlockElements + static_cast<uint64_t>(block)) * kBlockLanes;
  return (uint64_t{turn} << 62) + index + static_cast<uint64_t>(lane);
}

// x / scale, rounded up with the probability of its fraction: if u, uniform in [0, 1), is below it.
TANDEM_HOST_DEVICE inline uint32_t block_byte(float x, float scale, float u) {
  const float quotient = x / scale, below = std::floor(quotient);
  return static_cast<uint32_t>(static_cast<int32_t>(below) + (u < quotient - below ? 1 : 0)) &
         0xffu;
}

TANDEM_HOST_DEVICE inline float block_element(int32_t word, int j, float scale) {
  return static_cast<float>(static_cast<int8_t>(word >> 8 * j & 0xffu)) * scale;
}

}  // namespace tandem::kernels

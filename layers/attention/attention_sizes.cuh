// Constants and functions that all GPU attention kernels share. Internal to attention.
#pragma once

#include <cmath>

#include "layers/attention/attention.h"
#include "src/kernels/launch.cuh"

namespace tandem::attention_sizes {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Factor from <query, key> to score. Times kLog2E, it gives exponents of 2.
inline float scale_of(int64_t width) { return 1 / std::sqrt(static_cast<float>(width)); }

inline constexpr int kBlocks = 2;  // blocks that must fit on a multiprocessor

// Bytes of dynamic shared memory. A multiprocessor of sm_80 has 164 KiB, of which each block takes
// 1 KiB more than it asks for.
template <class Tiles>
constexpr size_t bytes_of() {
  static_assert(kBlocks * (sizeof(Tiles) + 1024) <= 164 * 1024);
  return sizeof(Tiles);
}

// A block's part of the work. Tiles of a head vary fastest, then heads, then the batch.
struct Work {
  int64_t tile, head, b;
};

__device__ inline Work work_of_block(int64_t tiles, int64_t heads) {
  const int64_t block = blockIdx.x;
  return {block % tiles, block / tiles % heads, block / (tiles * heads)};
}

}  // namespace tandem::attention_sizes

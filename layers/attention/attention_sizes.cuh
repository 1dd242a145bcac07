// Constants and functions that all GPU attention kernels share. Internal to attention.
#pragma once

#include <cfloat>
#include <cmath>

#include "layers/attention/attention.h"
#include "src/device/global.h"
#include "src/kernels/block.cuh"

namespace tandem::attention_sizes {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Factor from <query, key> to score. Times kLog2E, it gives exponents of 2.
inline float scale_of(int64_t width) { return 1 / std::sqrt(static_cast<float>(width)); }

// What the largest score of a row begins with. It is finite, so that a tile of keys that are all of
// other documents adds 2^-inf = 0 to the row's sums, not NaN.
inline constexpr float kLowest = -FLT_MAX;

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

// The documents of sequence b (attention_forward). Without kDocuments it is one document, and
// `positions` is not read.
template <bool kDocuments>
struct Documents {
  Global<const int32_t> positions;
  int64_t first;  // element of positions
  int length;

  __device__ Documents(Global<const int32_t> all, const AttentionSizes& sizes, int64_t b)
      : positions(all), first(b * sizes.length), length(static_cast<int>(sizes.length)) {}

  // The first key that a query sees. Queries past the end of the sequence have that of the last.
  __device__ int start(int64_t of) const {
    const int query = of < length ? static_cast<int>(of) : length - 1;
    return kDocuments ? query - positions.load(first + query) : 0;
  }

  // The first query after `key` that does not see it, or `length`. All lanes of a warp must call
  // this, with the same key: each round asks 32 queries, which divide those in question evenly.
  __device__ int end(int key) const {
    int end = kDocuments ? key + 1 : length;  // at least, and at most `count` more
    for (int count = length - end; count > 0;) {
      const int step = count / kWarp + 1;
      const int query = end + static_cast<int>(threadIdx.x) % kWarp * step + step - 1;
      const bool is_after = query >= length || start(query) > key;
      end += (__ffs(static_cast<int>(__ballot_sync(kAllLanes, is_after))) - 1) * step;
      count = step - 1;
    }
    return min(end, length);
  }
};

// Calls f.template operator()<kDocuments>().
template <class F>
void with_documents(const int32_t* positions, F f) {
  positions ? f.template operator()<true>() : f.template operator()<false>();
}

}  // namespace tandem::attention_sizes

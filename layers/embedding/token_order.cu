// A stable radix sort that takes 8 bits of the token in each pass. Each thread of a block owns one
// value of the digit and walks over the block's tile in order. So the sort is stable and needs no
// atomics.
#include <bit>
#include <utility>

#include "layers/embedding/token_order.h"
#include "src/device/global.h"
#include "src/kernels/launch.cuh"

namespace tandem::kernels {

namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = kOrderDigits, kTile = kOrderTile;
static_assert(kDigits == 1 << kDigitBits);

// `order` is the result of the earlier passes; null in the first pass.
__device__ int32_t place_at(Global<const int32_t> order, int64_t i) {
  return order ? order.load(i) : static_cast<int32_t>(i);
}

struct Tile {
  alignas(16) int32_t place[kTile];
  alignas(16) int32_t digit[kTile];  // -1 past the end
};

// Loads places [blockIdx.x * kTile, ...) of `order`, and the digits of their tokens at bit `shift`.
__device__ const Tile& load_tile(Global<const int32_t> tokens, Global<const int32_t> order,
                                 int64_t count, int shift) {
  Tile& tile = shared<Tile>();
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kDigits) {
    const int64_t from = int64_t{blockIdx.x} * kTile + i;
    const int32_t place = from < count ? place_at(order, from) : 0;
    tile.place[i] = place;
    tile.digit[i] = from < count ? (tokens.load(place) >> shift) & (kDigits - 1) : -1;
  }
  __syncthreads();
  return tile;
}

// counts [tiles, kDigits]
__global__ void __launch_bounds__(kDigits)
    count_digits_kernel(Global<const int32_t> tokens, Global<const int32_t> order, int64_t count,
                        int shift, Global<int32_t> counts) {
  const Tile& tile = load_tile(tokens, order, count, shift);
  const int own = static_cast<int>(threadIdx.x);
  int32_t of_digit = 0;
#pragma unroll 8
  for (int i = 0; i < kTile; ++i) {
    of_digit += tile.digit[i] == own;
  }
  counts.store(int64_t{blockIdx.x} * kDigits + own, of_digit);
}

// Replaces each count by the place of its first element: after all lower digits, and after the same
// digit of earlier tiles. Runs in one block.
__global__ void __launch_bounds__(kDigits)
    place_digits_kernel(Global<int32_t> counts, int64_t tiles) {
  struct Totals {
    int32_t of[kDigits];
  };
  Totals& totals = shared<Totals>();
  const int own = static_cast<int>(threadIdx.x);
  int32_t total = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    total += counts.load(t * kDigits + own);
  }
  totals.of[own] = total;
  __syncthreads();
  int32_t next = 0;
  for (int digit = 0; digit < own; ++digit) {
    next += totals.of[digit];
  }
  constexpr int kAhead = 8;  // loads in flight
  for (int64_t first = 0; first < tiles; first += kAhead) {
    int32_t count[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      count[i] = first + i < tiles ? counts.load((first + i) * kDigits + own) : 0;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < tiles) {
        counts.store((first + i) * kDigits + own, next);
      }
      next += count[i];
    }
  }
}

__global__ void __launch_bounds__(kDigits)
    move_places_kernel(Global<const int32_t> tokens, Global<const int32_t> order, int64_t count,
                       int shift, Global<const int32_t> firsts, Global<int32_t> next_order) {
  const Tile& tile = load_tile(tokens, order, count, shift);
  const int own = static_cast<int>(threadIdx.x);
  int32_t next = firsts.load(int64_t{blockIdx.x} * kDigits + own);
#pragma unroll 8
  for (int i = 0; i < kTile; ++i) {
    if (tile.digit[i] == own) {
      next_order.store(next++, tile.place[i]);
    }
  }
}

// starts[v] = the number of tokens below v, by bisection.
__global__ void __launch_bounds__(kDigits)
    find_starts_kernel(Global<const int32_t> tokens, Global<const int32_t> order, int64_t count,
                       int64_t vocab, Global<int32_t> starts) {
  const int64_t v = int64_t{blockIdx.x} * kDigits + threadIdx.x;
  if (v > vocab) {
    return;
  }
  int32_t first = 0, last = static_cast<int32_t>(count);
  while (first < last) {
    const int32_t middle = first + (last - first) / 2;
    if (tokens.load(place_at(order, middle)) < v) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  starts.store(v, first);
}

}  // namespace

TokenOrder order_tokens(Cuda device, const int32_t* tokens, int64_t count, int64_t vocab,
                        int32_t* workspace) {
  const int64_t tiles = order_tiles(count);
  int32_t* to = workspace;
  int32_t* spare = to + count;
  int32_t* counts = spare + count;
  int32_t* starts = counts + tiles * kDigits;
  const int32_t* order = nullptr;
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(vocab - 1) | 1));
  for (int shift = 0; tiles > 0 && shift < bits; shift += kDigitBits) {
    const unsigned blocks = blocks_for(tiles, 1);
    launch<count_digits_kernel>(device, blocks, kDigits, 0, tokens, order, count, shift, counts);
    launch<place_digits_kernel>(device, 1, kDigits, 0, counts, tiles);
    launch<move_places_kernel>(device, blocks, kDigits, 0, tokens, order, count, shift, counts, to);
    order = to;
    std::swap(to, spare);
  }
  launch<find_starts_kernel>(device, blocks_for(vocab + 1, kDigits), kDigits, 0, tokens, order,
                             count, vocab, starts);
  return {order, starts};
}

}  // namespace tandem::kernels

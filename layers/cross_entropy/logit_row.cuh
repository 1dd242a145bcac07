// A row of logits, as the threads of a block read it.
#pragma once

#include <bit>

#include "layers/cross_entropy/cross_entropy.h"
#include "src/device/ptx.cuh"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

inline constexpr int kThreads = 256, kThreadsOfLongRows = 1024;
inline constexpr int64_t kLongRowBytes = 32 * 1024;

inline __device__ float exp_of(float x) { return ptx::exp2(x * 1.44269504f); }  // log2(e)

// A row. Elements are counted from the last 16-byte boundary before it, so element `begin` is the
// first one, and packs begin at multiples of kPack<T>.
template <class T>
struct Row {
  Global<T> data;
  int begin, classes_end, end;
  int32_t target;
  bool aligned;  // the logits are: packs can be accessed as such

  // Past the last row all rows are ignored.
  __device__ Row(Global<T> logits, Global<const int32_t> targets, LogitRows shape, int64_t row,
                 bool logits_aligned)
      : target(row < shape.rows ? targets.load(row) : kIgnoreTarget), aligned(logits_aligned) {
    const int64_t first = row * shape.width;
    begin = static_cast<int>(first % kPack<T>);
    data = logits + (first - begin);
    classes_end = begin + static_cast<int>(shape.classes);
    end = begin + static_cast<int>(shape.width);
  }
};

// The elements among [first, last) that are in whole packs: [begin, end).
template <class T>
struct PackRange {
  int begin, end;

  __device__ PackRange(int first, int last, bool aligned) {
    const int next_pack = (first + kPack<T> - 1) / kPack<T> * kPack<T>;
    begin = aligned && next_pack < last ? next_pack : last;
    end = last - (last - begin) % kPack<T>;
  }
};

// Calls f<kCount>(i) for elements [i, i + kCount) that together cover [first, last). Each element
// is visited by one thread of the block, and by the same one in each call. Elements in whole packs
// are visited as packs, those before and after one by one.
template <int kBlock, class T, class F>
__device__ void visit(int first, int last, bool aligned, F f) {
  const PackRange<T> packs(first, last, aligned);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = first + thread; i < packs.begin; i += kBlock) {
    f.template operator()<1>(i);
  }
#pragma unroll 2
  for (int i = packs.begin + thread * kPack<T>; i < packs.end; i += kBlock * kPack<T>) {
    f.template operator()<kPack<T>>(i);
  }
  for (int i = packs.end + thread; i < last; i += kBlock) {
    f.template operator()<1>(i);
  }
}

template <int kBlock, class T>
__device__ void set_to_zero(const Row<T>& row, int first) {
  visit<kBlock, T>(first, row.end, row.aligned, [&]<int kCount>(int i) {
    const float zeros[kCount] = {};
    store_pack(row.data, i, zeros);
  });
}

// The number that is subtracted from exponents: the largest logit, or 0 if that is -infinity,
// because -infinity minus itself is NaN.
inline __device__ float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// The sum of exp(x - base_of(largest)) over the logits seen so far (Milakov and Gimelshein 2018,
// arXiv:1805.02867). If a logit is NaN, so is the sum.
struct OnlineSum {
  float largest = -INFINITY;
  float total = 0;

  template <class T, int kCount>
  __device__ void add(const Elements<T, kCount>& x) {
    const float before = largest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float value = x.of[k];
      largest = fmaxf(value, largest);
    }
    const float base = base_of(largest);
    total *= exp_of(before - base);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      total += exp_of(float(x.of[k]) - base);
    }
  }

  // The sum over the whole block. Every thread must call this.
  __device__ OnlineSum of_block() const {
    const float of_all = block_max(largest);
    return {of_all, block_sum(total * exp_of(largest - base_of(of_all)))};
  }
  __device__ float log_of_block() const {
    const OnlineSum all = of_block();
    return base_of(all.largest) + logf(all.total);
  }
};

// Numbers with the same order as the floats. Of equal floats (-0 equals 0) the one in the lower
// column is larger.
inline __device__ uint64_t rank_of(float x, int column) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(column);
}

// Returns rank_of() of the largest logit. Every thread of a block of kThreads must call this.
template <class T>
__device__ uint64_t largest_of(const Row<const T>& row) {
  uint64_t best = 0;
  visit<kThreads, T>(row.begin, row.classes_end, row.aligned, [&]<int kCount>(int i) {
    float x[kCount];
    load_pack(row.data, i, x);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const uint64_t rank = rank_of(x[k], i + k - row.begin);
      best = rank > best ? rank : best;
    }
  });
  return block_max(best);
}

// Calls f<kBlock>() with the number of threads for a row.
template <class T, class F>
void with_threads(LogitRows shape, F f) {
  shape.classes* int64_t{sizeof(T)} > kLongRowBytes ? f.template operator()<kThreadsOfLongRows>()
                                                    : f.template operator()<kThreads>();
}

}  // namespace tandem::kernels

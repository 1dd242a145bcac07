// Loads and stores kCount neighbouring elements as a thread's registers. kCount is 1, kPack<T> / 2
// (an access of 8 bytes) or a multiple of kPack<T> (accesses of 16 bytes). If it is not 1, the
// first element must be aligned to 16 bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <iterator>

#include "src/device/global.h"
#include "src/device/ptx.cuh"
#include "src/kernels/launch.cuh"

namespace tandem {

template <class T, int kCount>
struct Elements {
  T of[kCount];
};

template <class T, int kCount>
inline constexpr bool kIsHalfPack = kCount > 1 && 2 * kCount == kPack<T>;
template <class T, int kCount>
inline constexpr bool kIsWhole = kCount == 1 || kIsHalfPack<T, kCount> || kCount % kPack<T> == 0;

// values[j] = from[i + j]
template <int kCount, class T, class V>
__device__ void load_pack(Global<T> from, int64_t i, V (&values)[kCount]) {
  static_assert(kIsWhole<T, kCount>);
  const auto copy = [&](int first, const auto& pack) {
#pragma unroll
    for (int j = 0; j < static_cast<int>(std::size(pack.values)); ++j) {
      values[first + j] = V(pack[j]);
    }
  };
  if constexpr (kCount == 1) {
    values[0] = V(from.load(i));
  } else if constexpr (kIsHalfPack<T, kCount>) {
    copy(0, from.load8(i));
  } else {
#pragma unroll
    for (int p = 0; p < kCount; p += kPack<T>) {
      copy(p, from.load16(i + p));
    }
  }
}

// load_pack() that returns its values, for use with parameter packs. The elements keep type T.
template <int kCount, class T>
__device__ Elements<T, kCount> load_elements(Global<const T> from, int64_t i) {
  Elements<T, kCount> elements;
  load_pack(from, i, elements.of);
  return elements;
}

// Two numbers rounded to T (bf16 or fp16), `low` in the lower half. A GPU does so in one
// instruction.
template <class T>
__device__ uint32_t rounded_pair(float low, float high) {
  static_assert(kIs16Bit<T>);
  return std::is_same_v<T, Bf16> ? ptx::bf16_pair(low, high) : ptx::fp16_pair(low, high);
}

// kCount numbers, rounded to T.
template <class T, int kCount = kPack<T>, class V>
__device__ Pack<T, kCount> rounded_pack(const V* values) {
  if constexpr (kIs16Bit<T> && std::is_same_v<V, float>) {
    struct alignas(2 * kCount) {
      uint32_t words[kCount / 2];
    } pairs;
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) {
      pairs.words[j] = rounded_pair<T>(values[2 * j], values[2 * j + 1]);
    }
    return std::bit_cast<Pack<T, kCount>>(pairs);
  } else {
    Pack<T, kCount> pack;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      pack[j] = T(values[j]);
    }
    return pack;
  }
}

// to[i + j] = values[j], rounded to T.
template <int kCount, class T, class V>
__device__ void store_pack(Global<T> to, int64_t i, const V (&values)[kCount]) {
  static_assert(kIsWhole<T, kCount>);
  if constexpr (kCount == 1) {
    to.store(i, T(values[0]));
  } else if constexpr (kIsHalfPack<T, kCount>) {
    to.store8(i, rounded_pack<T, kCount>(values));
  } else {
#pragma unroll
    for (int p = 0; p < kCount; p += kPack<T>) {
      to.store16(i + p, rounded_pack<T>(values + p));
    }
  }
}

// True if every row of these matrices, with `columns` columns, consists of whole packs that are
// aligned to 16 bytes.
template <class T, class... P>
bool packs_fit(int64_t columns, const T* matrix, const P*... others) {
  return columns % kPack<T> == 0 && aligned16(matrix, others...);
}

// Calls f<kMost>() if `whole`: a thread takes kMost neighbours. Otherwise calls f<1>().
template <int kMost, class F>
void with_pack(bool whole, F f) {
  whole ? f.template operator()<kMost>() : f.template operator()<1>();
}

// The same with as many neighbours as 16 bytes of the widest type hold. Neighbouring threads then
// access neighbouring memory in arrays of all types.
template <class... T, class F>
void with_pack(bool whole, F f) {
  with_pack<std::min({kPack<T>...})>(whole, f);
}

}  // namespace tandem

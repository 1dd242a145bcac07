// Loads and stores kCount neighbouring elements as a thread's registers. kCount is 1 or a multiple
// of kPack<T>; a multiple needs a first element that is aligned to 16 bytes.
#pragma once

#include <bit>

#include "src/device/global.h"
#include "src/device/ptx.cuh"
#include "src/kernels/launch.cuh"

namespace tandem {

template <class T, int kCount>
struct Elements {
  T of[kCount];
};

// values[j] = from[i + j]
template <int kCount, class T, class V>
__device__ void load_pack(Global<T> from, int64_t i, V (&values)[kCount]) {
  if constexpr (kCount == 1) {
    values[0] = V(from.load(i));
  } else {
#pragma unroll
    for (int p = 0; p < kCount; p += kPack<T>) {
      const auto pack = from.load16(i + p);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        values[p + j] = V(pack[j]);
      }
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

// kPack<T> numbers, rounded to T.
template <class T, class V>
__device__ Pack<T> rounded_pack(const V* values) {
  if constexpr (kIs16Bit<T> && std::is_same_v<V, float>) {
    struct alignas(16) {
      uint32_t words[4];
    } pairs;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      pairs.words[j] = rounded_pair<T>(values[2 * j], values[2 * j + 1]);
    }
    return std::bit_cast<Pack<T>>(pairs);
  } else {
    Pack<T> pack;
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      pack[j] = T(values[j]);
    }
    return pack;
  }
}

// to[i + j] = values[j], rounded to T.
template <int kCount, class T, class V>
__device__ void store_pack(Global<T> to, int64_t i, const V (&values)[kCount]) {
  if constexpr (kCount == 1) {
    to.store(i, T(values[0]));
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

// The same with kMost = kPack<T>.
template <class T, class F>
void with_pack(bool whole, F f) {
  with_pack<kPack<T>>(whole, f);
}

}  // namespace tandem

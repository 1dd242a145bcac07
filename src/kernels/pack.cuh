// Neighbouring elements of an array as a thread's registers. kCount is 1, or a multiple of
// kPack<T>; then the first element lies at a multiple of 16 bytes.
#pragma once

#include "src/device/global.h"
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

// The same as a value, for parameter packs, and as narrow as in memory.
template <int kCount, class T>
__device__ Elements<T, kCount> load_elements(Global<const T> from, int64_t i) {
  Elements<T, kCount> elements;
  load_pack(from, i, elements.of);
  return elements;
}

// to[i + j] = values[j], rounded
template <int kCount, class T, class V>
__device__ void store_pack(Global<T> to, int64_t i, const V (&values)[kCount]) {
  if constexpr (kCount == 1) {
    to.store(i, T(values[0]));
  } else {
#pragma unroll
    for (int p = 0; p < kCount; p += kPack<T>) {
      Pack<T> pack;
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        pack[j] = T(values[p + j]);
      }
      to.store16(i + p, pack);
    }
  }
}

// True when the rows of matrices with `columns` columns are whole packs at multiples of 16 bytes.
template <class T, class... P>
bool packs_fit(int64_t columns, const T* matrix, const P*... others) {
  return columns % kPack<T> == 0 && aligned16(matrix, others...);
}

// Calls f<kCount>() for a thread that takes kMost neighbours, or a single element.
template <int kMost, class F>
void with_pack(bool whole, F f) {
  whole ? f.template operator()<kMost>() : f.template operator()<1>();
}

// The same for a pack of T.
template <class T, class F>
void with_pack(bool whole, F f) {
  with_pack<kPack<T>>(whole, f);
}

}  // namespace tandem

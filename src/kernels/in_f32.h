// Runs an f32 CPU kernel on 16-bit arrays. Inputs are converted to f32 in scratch memory; outputs
// are rounded to the nearest 16-bit number.
//
//   in_f32([&](const float* x, float* y) { kernel(Cpu{}, x, y, n); }, in(x16, n), out(y16, n));
#pragma once

#include <memory>
#include <tuple>

#include "src/kernels/map.h"

namespace tandem {

template <class T, bool kReads, bool kWrites>
struct Widened {
  T* data;  // if null, the kernel gets null
  int64_t n;
  std::unique_ptr<float[]> scratch = nullptr;

  // Returns the pointer for the kernel.
  std::conditional_t<kWrites, float*, const float*> open() {
    if (!data) {
      return nullptr;
    }
    scratch = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(n));
    if constexpr (kReads) {
      map(Cpu{}, n, [from = data, to = scratch.get()](int64_t i) { to[i] = from[i]; });
    }
    return scratch.get();
  }
  void close() {
    if constexpr (kWrites) {
      if (data) {
        map(Cpu{}, n, [from = scratch.get(), to = data](int64_t i) { to[i] = T(from[i]); });
      }
    }
  }
};

template <class T>
Widened<const T, true, false> in(const T* data, int64_t n) {
  return {data, n};
}
template <class T>
Widened<T, false, true> out(T* data, int64_t n) {
  return {data, n};
}
template <class T>
Widened<T, true, true> inout(T* data, int64_t n) {
  return {data, n};
}

template <class F, class... W>
void in_f32(F kernel, W... arrays) {
  std::tuple<W...> opened{std::move(arrays)...};
  std::apply([&](auto&... array) { kernel(array.open()...); }, opened);
  std::apply([](auto&... array) { (array.close(), ...); }, opened);
}

}  // namespace tandem

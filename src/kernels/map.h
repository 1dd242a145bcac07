// Runs one host-device functor over n elements: the elementwise mathematics is written once for all
// devices.
#pragma once

#include "src/device/dispatch.h"

namespace tandem {

// Below this many elements a parallel region costs more than it saves.
inline constexpr int64_t kParallelElements = 16384;

// f(i) for i in [0, n); iterations are independent and may run in any order.
template <class F>
void map(Cpu, int64_t n, F f) {
  // firstprivate: seen through a shared reference, what f holds could change with every store, and
  // the loop would not vectorise.
#pragma omp parallel for simd schedule(static) firstprivate(f) if (n >= kParallelElements)
  for (int64_t i = 0; i < n; ++i) {
    f(i);
  }
}

// to[i] = f(from[i]...) for i in [0, n), computed in Wide<To> and rounded to To once. `to` may be
// one of `from`. f is a host-device functor without pointers into arrays of n; with no `from` it
// gives one value for all. The GPU's body is in transform.cuh.
template <class To, class F, class... From>
void transform(Cpu, int64_t n, To* to, F f, const From*... from) {
  map(Cpu{}, n, [=](int64_t i) { to[i] = To(f(Wide<From>(from[i])...)); });
}

}  // namespace tandem

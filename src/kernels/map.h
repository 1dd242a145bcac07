// Runs one host-device functor over n elements, so that elementwise formulas are written once for
// all devices.
#pragma once

#include "src/device/dispatch.h"

namespace tandem {

// Below this many elements a parallel region costs more than it saves.
inline constexpr int64_t kParallelElements = 16384;

// f(i) for i in [0, n). Iterations must be independent; they may run in any order.
template <class F>
void map(Cpu, int64_t n, F f) {
  // firstprivate: through a shared reference, each store could change what f holds, and the loop
  // would not vectorise.
#pragma omp parallel for simd schedule(static) firstprivate(f) if (n >= kParallelElements)
  for (int64_t i = 0; i < n; ++i) {
    f(i);
  }
}

// to[i] = f(from[i]...) for i in [0, n), computed in Wide<To> and rounded to To once. `to` may be
// the same array as one of `from`. f is a host-device functor; it must not point into arrays of n
// elements. Without any `from`, f() returns one value for all elements. The GPU version is in
// transform.cuh.
template <class To, class F, class... From>
void transform(Cpu, int64_t n, To* to, F f, const From*... from) {
  map(Cpu{}, n, [=](int64_t i) { to[i] = To(f(Wide<From>(from[i])...)); });
}

}  // namespace tandem

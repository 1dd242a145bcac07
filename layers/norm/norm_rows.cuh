// How the CUDA kernels of norm.h hold a row in registers.
#pragma once

#include "layers/norm/norm.h"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

// A row is held by kRowWarps warps. Thread `lane` of them holds the 16-byte packs lane, lane +
// kLanes, ..., at most kElements elements. A block holds eight rows if a row takes one warp,
// otherwise one row.
template <class T, int kRowWarps, int kMaxElements>
struct RowLayout {
  using Element = T;
  static constexpr int kWarps = kRowWarps;
  static constexpr int kLanes = kRowWarps * kWarp;
  static constexpr int kRows = kRowWarps == 1 ? 8 : 1;
  static constexpr int kThreads = kRows * kLanes;
  static constexpr int kElements = kMaxElements;
  static constexpr int kPacks = kElements / kPack<T>;
  static constexpr int64_t kWidest = kLanes * kElements;

  int lane = static_cast<int>(threadIdx.x) % kLanes;
  int row = static_cast<int>(threadIdx.x) / kLanes;  // below kRows

  // Calls f(v, first column) for each pack of this thread; v is a compile-time constant.
  template <class F>
  __device__ void for_each_pack(int width, F f) const {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      const int column = (lane + v * kLanes) * kPack<T>;
      if (column < width) {
        f(v, column);
      }
    }
  }
};

// Calls f<Layout>() with the first layout that can hold a row of `width`. Returns false if none
// can, if a row is not whole packs, or if a pointer is not aligned for packs.
template <class T, class... Layouts, class F, class... P>
bool with_layout(int64_t width, F f, const P*... pointers) {
  if (!packs_fit<T>(width, pointers...)) {
    return false;
  }
  return ((width <= Layouts::kWidest && (f.template operator()<Layouts>(), true)) || ...);
}

}  // namespace tandem::kernels

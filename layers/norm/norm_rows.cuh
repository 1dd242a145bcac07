// How the CUDA kernels of norm.h hold a row in registers.
#pragma once

#include <algorithm>

#include "layers/norm/norm.h"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

// A row is held by kRowWarps warps. Thread `lane` of them holds the 16-byte packs lane, lane +
// kLanes, ..., at most kMaxElements elements. A block has at least eight warps, so it holds eight
// rows of one warp, four rows of two warps, ..., one row of eight or sixteen warps.
//
// A block takes the rows blockIdx.x * kRows + row, then those gridDim.x * kRows later, and so on.
// All its warps go through the same number of steps; `row` may be past the end in the last one.
template <class T, int kRowWarps, int kMaxElements>
struct RowLayout {
  using Element = T;
  static constexpr int kWarps = kRowWarps;
  static constexpr int kLanes = kRowWarps * kWarp;
  static constexpr int kRows = std::max(1, 8 / kRowWarps);
  static constexpr int kThreads = kRows * kLanes;
  static constexpr int kElements = kMaxElements;
  static constexpr int kPacks = kElements / kPack<T>;
  static constexpr int64_t kWidest = kLanes * kElements;
  using Row = Pack<T>[kPacks];  // what a thread holds of a row

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

  __device__ void load(Global<const T> from, int64_t first, int width, Row& to) const {
    for_each_pack(width, [&](int v, int column) { to[v] = from.load16(first + column); });
  }

  // A parameter [width], which the block reads once. Every thread must call this.
  __device__ void load_parameter(Global<const T> parameter, int width, Row& to) const {
    if constexpr (kRows == 1) {
      load(parameter, 0, width, to);
    } else {
      struct Parameter {
        Pack<T> packs[kWidest / kPack<T>];
      };
      Parameter& block = shared<Parameter>();
      for (int i = static_cast<int>(threadIdx.x); i * kPack<T> < width; i += kThreads) {
        block.packs[i] = parameter.load16(int64_t{i} * kPack<T>);
      }
      __syncthreads();
      for_each_pack(width, [&](int v, int column) { to[v] = block.packs[column / kPack<T>]; });
      __syncthreads();  // `block` may be used again
    }
  }

  // Sums over the threads of a row. Every thread of the block must call this. `step` counts the
  // calls: each uses other memory than the one before, so that one barrier is enough.
  template <int kCount>
  __device__ void row_sums(float (&values)[kCount], int step) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = warp_sum(values[i]);
    }
    if constexpr (kWarps > 1) {
      struct Partial {
        float of[2][kRows][kWarps][kCount];
      };
      auto& partial = shared<Partial>().of[step % 2][row];
      if (lane % kWarp == 0) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          partial[lane / kWarp][i] = values[i];
        }
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          values[i] += partial[w][i];
        }
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

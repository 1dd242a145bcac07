// How the CUDA kernels of norm.h hold a row in registers.
#pragma once

#include <algorithm>

#include "layers/norm/norm.h"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

// The elements of a 16-byte pack in whole registers, widened where they are used. In a Pack, the
// compiler gives each element of 16 bits a register of its own.
template <class T>
class PackedWords {
 public:
  PackedWords() = default;
  __device__ PackedWords(Pack<T> pack) : words_(std::bit_cast<Words>(pack)) {}
  __device__ operator Pack<T>() const { return std::bit_cast<Pack<T>>(words_); }
  __device__ float operator[](int j) const {
    if constexpr (!kIs16Bit<T>) {
      return std::bit_cast<float>(words_.of[j]);
    } else if constexpr (std::is_same_v<T, Bf16>) {
      const uint32_t pair = words_.of[j / 2];
      return std::bit_cast<float>(j % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    } else {
      return float(std::bit_cast<T>(static_cast<uint16_t>(words_.of[j / 2] >> j % 2 * 16)));
    }
  }

 private:
  struct Words {
    uint32_t of[4];
  };
  Words words_{};
};

// A row is held by kRowWarps warps. Thread `lane` of them holds the 16-byte packs lane, lane +
// kLanes, ..., at most kMaxElements elements. A block has kBlockWarps warps or those of one row, so
// eight warps hold eight rows of one warp, four rows of two warps, ..., one row of eight warps.
//
// A block takes the rows blockIdx.x * kRows + row, then those gridDim.x * kRows later, and so on.
// All its warps go through the same number of steps; `row` may be past the end in the last one.
template <class T, int kRowWarps, int kMaxElements, int kBlockWarps = 8>
struct RowLayout {
  using Element = T;
  static constexpr int kWarps = kRowWarps;
  static constexpr int kLanes = kRowWarps * kWarp;
  static constexpr int kRows = std::max(1, kBlockWarps / kRowWarps);
  static constexpr int kThreads = kRows * kLanes;
  static constexpr int kElements = kMaxElements;
  static constexpr int kPacks = kElements / kPack<T>;
  static constexpr int64_t kWidest = kLanes * kElements;
  using Row = PackedWords<T>[kPacks];  // what a thread holds of a row

  int lane = static_cast<int>(threadIdx.x) % kLanes;
  int row = static_cast<int>(threadIdx.x) / kLanes;  // below kRows

  // The first column of this thread's pack v.
  __device__ int column(int v) const { return (lane + v * kLanes) * kPack<T>; }

  // Calls f(v, first column) for each pack of this thread; v is a compile-time constant.
  template <class F>
  __device__ void for_each_pack(int width, F f) const {
#pragma unroll
    for (int v = 0; v < kPacks; ++v) {
      if (column(v) < width) {
        f(v, column(v));
      }
    }
  }

  __device__ void load(Global<const T> from, int64_t first, int width, Row& to) const {
    for_each_pack(width, [&](int v, int column) { to[v] = from.load16(first + column); });
  }

  // A parameter [width], which the block reads once into shared memory, and zeros up to kWidest.
  // The memory holds one parameter at a time. Every thread must call this.
  __device__ const Pack<T>* shared_parameter(Global<const T> parameter, int width) const {
    constexpr int kBlockPacks = kLanes * kPacks;
    struct Parameter {
      Pack<T> packs[kBlockPacks];
    };
    Parameter& block = shared<Parameter>();
    for (int i = static_cast<int>(threadIdx.x); i < kBlockPacks; i += kThreads) {
      const int column = i * kPack<T>;
      block.packs[i] = column < width ? parameter.load16(column) : Pack<T>{};
    }
    __syncthreads();
    return block.packs;
  }

  // This thread's packs of a parameter [width]. Every thread must call this.
  __device__ void load_parameter(Global<const T> parameter, int width, Row& to) const {
    if constexpr (kRows == 1) {
      load(parameter, 0, width, to);
    } else {
      const Pack<T>* const packs = shared_parameter(parameter, width);
      for_each_pack(width, [&](int v, int column) { to[v] = packs[column / kPack<T>]; });
      __syncthreads();  // the next parameter may take its place
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

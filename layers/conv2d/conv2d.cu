#include <algorithm>

#include "layers/conv2d/conv2d.h"
#include "layers/conv2d/conv2d_gemm.cuh"
#include "layers/conv2d/conv2d_grid.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

using namespace conv2d_detail;

// --- forward pass and gradient of the input ---
//
// Rows of the product are target pixels, columns are target channels, and k counts taps.

template <class T, bool kTransposed, bool kVector>
struct ConvolveOperands {
  using E = RunElement<T, kVector>;
  static constexpr int kRuns = kTileRows / kLinesAtOnce;
  static_assert(kTileColumns == kLinesAtOnce);
  // Runs of weights are neighbours in k, except packs of transposed ones, which are neighbouring
  // columns.
  static constexpr bool kAlongK = !(kTransposed && kVector);

  const Sizes& sizes;
  const TapGrid& grid;
  Global<const T> source, w;
  Run at = run_along_k<E>();
  Run w_at = kAlongK ? at : run_along_lines<E, kTileColumns>();
  int channel;
  Index3 pixel[kRuns];
  Index3 tap, w_tap, step;
  Pack<E> runs[kRuns], w_run;

  __device__ ConvolveOperands(const Sizes& s, const TapGrid& g, Global<const T> images,
                              Global<const T> weights, int64_t first_pixel, int first_channel)
      : sizes(s), grid(g), source(images), w(weights), channel(first_channel + w_at.line) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      pixel[r] = split(first_pixel + at.line + r * kLinesAtOnce, grid.pixel_extents());
    }
    tap = split(at.k, grid.tap_extents());
    w_tap = split(w_at.k, grid.tap_extents());
    step = split(kSlice<E>, grid.tap_extents());
  }

  __device__ int64_t weight(Index3 t, int target_channel) const {
    const int targets = kTransposed ? sizes.in : sizes.out;
    if (t.outer >= grid.rows.taps || target_channel >= targets) {
      return -1;
    }
    const int kh = grid.rows.kernel_first + t.outer * grid.rows.kernel_step;
    const int kw = grid.columns.kernel_first + t.middle * grid.columns.kernel_step;
    const int co = kTransposed ? t.inner : target_channel;
    const int ci = kTransposed ? target_channel : t.inner;
    return ((int64_t{co} * sizes.kernel_h + kh) * sizes.kernel_w + kw) * sizes.in + ci;
  }

  __device__ void gather() {
    const Extents extents = grid.tap_extents();
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      runs[r] = load_run<kVector>(source, [&, t = tap]() mutable {
        const int64_t i = grid.source(pixel[r], t);
        t = next(t, extents);
        return i;
      });
    }
    w_run = load_run<kVector>(w, [&, t = kAlongK ? tap : w_tap, c = channel]() mutable {
      const int64_t i = weight(t, c);
      kAlongK ? void(t = next(t, extents)) : void(++c);
      return i;
    });
    tap = advance(tap, step, extents);
    w_tap = advance(w_tap, step, extents);
  }

  __device__ void put(Tile<E>& tile) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      put_along_k<RowQuad>(tile.rows, {at.k, at.line + r * kLinesAtOnce}, runs[r]);
    }
    if constexpr (kAlongK) {
      put_along_k<ColumnQuad>(tile.columns, w_at, w_run);
    } else {
      put_along_lines<ColumnQuad>(tile.columns, w_at, w_run);
    }
  }
};

// One pixel: target[i + j] = beta * target[i + j] + sums[j], for j below the number of channels.
template <bool kVector, class T>
__device__ void store_channels(Global<T> target, int64_t i, int channels,
                               const float (&sums)[kThreadColumns], float beta) {
  const auto mixed = [&](float sum, T old) { return T(sum + beta * float(old)); };
  if constexpr (kVector) {
#pragma unroll
    for (int j = 0; j < kThreadColumns; j += kPack<T>) {
      if (j < channels) {
        Pack<T> pack = beta == 0 ? Pack<T>{} : target.load16(i + j);
#pragma unroll
        for (int l = 0; l < kPack<T>; ++l) {
          pack[l] = mixed(sums[j + l], pack[l]);
        }
        target.store16(i + j, pack);
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < kThreadColumns; ++j) {
      if (j < channels) {
        target.store(i + j, mixed(sums[j], beta == 0 ? T{} : target.load(i + j)));
      }
    }
  }
}

// Forward: the target is y, the source x. Transposed: the target is dx, the source dy, and
// blockIdx.z selects one of the stride x stride grids.
template <class T, bool kTransposed, bool kVector>
__global__ void __launch_bounds__(kThreads, 2)
    convolve_kernel(Sizes sizes, Global<const T> source, Global<const T> w, Global<T> target,
                    float beta) {
  using E = RunElement<T, kVector>;
  const int grid_index = static_cast<int>(blockIdx.z);
  const TapGrid grid =
      kTransposed ? transposed_grid(sizes, grid_index / sizes.stride, grid_index % sizes.stride)
                  : forward_grid(sizes);
  const int64_t first_pixel = int64_t{blockIdx.x} * kTileRows;
  const int first_channel = static_cast<int>(blockIdx.y) * kTileColumns;
  if (first_pixel >= grid.pixels()) {
    return;  // the launch is sized for the first grid, the largest
  }
  Sums sums;
  if (grid.taps() > 0) {
    ConvolveOperands<T, kTransposed, kVector> operands(sizes, grid, source, w, first_pixel,
                                                       first_channel);
    accumulate<E>((grid.taps() + kSlice<E> - 1) / kSlice<E>, operands, sums);
  }
  const int height = kTransposed ? sizes.height : sizes.out_height;
  const int width = kTransposed ? sizes.width : sizes.out_width;
  const int channels = kTransposed ? sizes.in : sizes.out;
  const int channel = first_channel + Sums::column();
  Index3 pixel = split(first_pixel + Sums::row(), grid.pixel_extents());
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    if (pixel.outer < sizes.batch) {
      const int row = grid.rows.first + pixel.middle * grid.rows.step;
      const int column = grid.columns.first + pixel.inner * grid.columns.step;
      const int64_t at = (int64_t{pixel.outer} * height + row) * width + column;
      store_channels<kVector>(target, at * channels + channel, channels - channel, sums.of[i],
                              beta);
    }
    pixel = next(pixel, grid.pixel_extents());
  }
}

// --- gradient of the weights ---

template <class T, bool kVector>
struct CorrelateOperands {
  using E = RunElement<T, kVector>;
  static constexpr int kRuns = kTileRows / kLinesAtOnce;
  static constexpr int kApart = kSlice<E> / kRuns;  // distance in k between a thread's runs of x

  const Sizes& sizes;
  const TapGrid& grid;
  Global<const T> x, dy;
  Run at = run_along_lines<E, kTileRows>(), dy_at = run_along_lines<E, kTileColumns>();
  Index3 tap;
  int channel;
  Index3 pixel[kRuns];
  int64_t dy_pixel;
  Index3 step;
  Pack<E> runs[kRuns], dy_run;

  __device__ CorrelateOperands(const Sizes& s, const TapGrid& g, Global<const T> images,
                               Global<const T> gradient, int64_t first_tap, int first_channel,
                               int64_t first_pixel)
      : sizes(s),
        grid(g),
        x(images),
        dy(gradient),
        tap(split(first_tap + at.line, grid.tap_extents())),
        channel(first_channel + dy_at.line),
        dy_pixel(first_pixel + dy_at.k),
        step(split(kSlice<E>, grid.pixel_extents())) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      pixel[r] = split(first_pixel + at.k + r * kApart, grid.pixel_extents());
    }
  }

  __device__ void gather() {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      runs[r] = load_run<kVector>(x, [&, t = tap]() mutable {
        const int64_t i = grid.source(pixel[r], t);
        t = next(t, grid.tap_extents());
        return i;
      });
      pixel[r] = advance(pixel[r], step, grid.pixel_extents());
    }
    dy_run = load_run<kVector>(dy, [&, c = channel]() mutable {
      const int64_t i = dy_pixel < grid.pixels() && c < sizes.out ? dy_pixel * sizes.out + c : -1;
      ++c;
      return i;
    });
    dy_pixel += kSlice<E>;
  }

  __device__ void put(Tile<E>& tile) const {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      put_along_lines<RowQuad>(tile.rows, {at.k + r * kApart, at.line}, runs[r]);
    }
    put_along_lines<ColumnQuad>(tile.columns, dy_at, dy_run);
  }
};

// Writes the partial sums of share blockIdx.z.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads, 2)
    correlate_kernel(Sizes sizes, int64_t share_pixels, Global<const T> x, Global<const T> dy,
                     Global<float> partial) {
  using E = RunElement<T, kVector>;
  const TapGrid grid = forward_grid(sizes);
  const int first_tap = static_cast<int>(blockIdx.x) * kTileRows;
  const int first_channel = static_cast<int>(blockIdx.y) * kTileColumns;
  const int64_t begin = blockIdx.z * share_pixels;
  const int64_t end = min(begin + share_pixels, grid.pixels());
  Sums sums;
  CorrelateOperands<T, kVector> operands(sizes, grid, x, dy, first_tap, first_channel, begin);
  accumulate<E>(static_cast<int>((end - begin + kSlice<E> - 1) / kSlice<E>), operands, sums);
  const int tap = first_tap + Sums::row(), taps = grid.taps();
#pragma unroll
  for (int j = 0; j < kThreadColumns; ++j) {
    const int channel = first_channel + Sums::column() + j;
    if (channel >= sizes.out) {
      continue;
    }
    const int64_t i = (int64_t{blockIdx.z} * sizes.out + channel) * taps + tap;
    if constexpr (kVector) {
      if (tap < taps) {
        partial.store16(i, {sums.of[0][j], sums.of[1][j], sums.of[2][j], sums.of[3][j]});
      }
    } else {
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        if (tap + r < taps) {
          partial.store(i + r, sums.of[r][j]);
        }
      }
    }
  }
}

// dw = beta * dw + the sum over the shares of `partial`, in order.
__global__ void __launch_bounds__(kThreads)
    add_shares_kernel(int64_t n, int64_t shares, Global<const float> partial, Global<float> dw,
                      float beta) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) {
    return;
  }
  float sum = 0;
  for (int64_t share = 0; share < shares; ++share) {
    sum += partial.load(share * n + i);
  }
  dw.store(i, beta == 0 ? sum : sum + beta * dw.load(i));
}

// True if every run of kPack<T> channels can be one access.
template <class T, class... P>
bool channels_fit(const Conv2dShape& s, const T* array, const P*... others) {
  return packs_fit(s.in_channels, array, others...) && packs_fit(s.out_channels, array, others...);
}

template <class T, bool kTransposed>
void convolve(Cuda device, const Conv2dShape& s, const T* source, const T* w, T* target,
              float beta) {
  const int64_t grids = kTransposed ? s.stride : 1;  // per axis
  const int64_t height = kTransposed ? (s.height + grids - 1) / grids : s.out_height();
  const int64_t width = kTransposed ? (s.width + grids - 1) / grids : s.out_width();
  const int64_t pixels = s.batch * height * width;  // of the largest grid
  if (pixels == 0) {
    return;
  }
  const dim3 grid(blocks_for(pixels, kTileRows),
                  blocks_for(kTransposed ? s.in_channels : s.out_channels, kTileColumns),
                  static_cast<unsigned>(grids * grids));
  if (channels_fit(s, source, w, target)) {
    launch<convolve_kernel<T, kTransposed, true>>(device, grid, kThreads, kTileBytes<T>, Sizes(s),
                                                  source, w, target, beta);
  } else {
    launch<convolve_kernel<T, kTransposed, false>>(device, grid, kThreads, kTileBytes<float>,
                                                   Sizes(s), source, w, target, beta);
  }
}

}  // namespace

template <class T>
void conv2d_forward(Cuda device, const Conv2dShape& shape, const T* x, const T* w, T* y, Wide<T>*) {
  convolve<T, false>(device, shape, x, w, y, 0.0f);
}

template <class T>
void conv2d_backward_data(Cuda device, const Conv2dShape& shape, const T* dy, const T* w, T* dx,
                          Wide<T> beta, Wide<T>*) {
  convolve<T, true>(device, shape, dy, w, dx, beta);
}

template <class T>
void conv2d_backward_weight(Cuda device, const Conv2dShape& s, const T* x, const T* dy, Wide<T>* dw,
                            Wide<T> beta, Wide<T>* workspace) {
  const Shares shares(s);
  const dim3 grid(blocks_for(s.w_elements() / s.out_channels, kTileRows),
                  blocks_for(s.out_channels, kTileColumns), static_cast<unsigned>(shares.count));
  if (channels_fit(s, x, dy, workspace)) {
    launch<correlate_kernel<T, true>>(device, grid, kThreads, kTileBytes<T>, Sizes(s),
                                      shares.pixels, x, dy, workspace);
  } else {
    launch<correlate_kernel<T, false>>(device, grid, kThreads, kTileBytes<float>, Sizes(s),
                                       shares.pixels, x, dy, workspace);
  }
  launch<add_shares_kernel>(device, blocks_for(s.w_elements(), kThreads), kThreads, 0,
                            s.w_elements(), shares.count, workspace, dw, beta);
}

#define TANDEM_CONV2D(T)                                                                         \
  template void conv2d_forward<T>(Cuda, const Conv2dShape&, const T*, const T*, T*, float*);     \
  template void conv2d_backward_data<T>(Cuda, const Conv2dShape&, const T*, const T*, T*, float, \
                                        float*);                                                 \
  template void conv2d_backward_weight<T>(Cuda, const Conv2dShape&, const T*, const T*, float*,  \
                                          float, float*);
TANDEM_FOR_GPU(TANDEM_CONV2D)

}  // namespace tandem::kernels

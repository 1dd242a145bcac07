#include "layers/pool2d/pool2d.h"
#include "src/kernels/column_sums.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

// The place of a thread's first element in [batch, height, width, channels]; a thread has kC
// channels.
struct Place {
  int64_t image;
  int row, column;
  int64_t channel;
};

__device__ Place place_of(int64_t i, int64_t height, int64_t width, int64_t packs, int pack) {
  const int64_t pixel = i / packs, row = pixel / width;
  return {row / height, static_cast<int>(row % height), static_cast<int>(pixel % width),
          i % packs * pack};
}

template <class T, int kC>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_forward_kernel(Pool2dShape s, int64_t threads, Global<const T> x, Global<T> y,
                              Global<int32_t> winner) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= threads) {
    return;
  }
  const Place at = place_of(i, s.out_height(), s.out_width(), s.channels / kC, kC);
  const int height = static_cast<int>(s.height), width = static_cast<int>(s.width);
  const int kernel = static_cast<int>(s.kernel);
  const int top = at.row * static_cast<int>(s.stride) - static_cast<int>(s.padding);
  const int left = at.column * static_cast<int>(s.stride) - static_cast<int>(s.padding);
  const int64_t first = at.image * s.height * s.width * s.channels + at.channel;
  float best[kC] = {};
  int32_t place[kC];
#pragma unroll
  for (int j = 0; j < kC; ++j) {
    place[j] = -1;  // no winner yet
  }
  for (int ih = top < 0 ? 0 : top; ih < top + kernel && ih < height; ++ih) {
    for (int iw = left < 0 ? 0 : left; iw < left + kernel && iw < width; ++iw) {
      const int pixel = ih * width + iw;
      float value[kC];
      load_pack(x, first + pixel * s.channels, value);
#pragma unroll
      for (int j = 0; j < kC; ++j) {
        // A NaN wins only against a number, so the first NaN keeps its place.
        const bool wins =
            place[j] < 0 || value[j] > best[j] || (value[j] != value[j] && best[j] == best[j]);
        best[j] = wins ? value[j] : best[j];
        place[j] = wins ? pixel : place[j];
      }
    }
  }
  store_pack(y, i * kC, best);
  store_pack(winner, i * kC, place);
}

// Each thread sums, for its elements, the gradients of the windows whose maximum they were, in the
// order of the windows.
template <class T, int kC>
__global__ void __launch_bounds__(kThreads)
    max_pool2d_backward_kernel(Pool2dShape s, int64_t threads, Global<const T> dy,
                               Global<const int32_t> winner, Global<T> dx, float beta) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= threads) {
    return;
  }
  const Place at = place_of(i, s.height, s.width, s.channels / kC, kC);
  const int64_t out_height = s.out_height(), out_width = s.out_width();
  const auto pixel = static_cast<int32_t>(at.row * s.width + at.column);
  // The first window that contains `place`.
  const auto first_window = [&](int64_t place) {
    const int64_t begin = place + s.padding - s.kernel;
    return begin < 0 ? 0 : begin / s.stride + 1;
  };
  const int64_t top = first_window(at.row), left = first_window(at.column);
  float total[kC] = {};
  if (beta != 0) {
    load_pack(dx, i * kC, total);
  }
  for (int64_t oh = top; oh < out_height && oh * s.stride <= at.row + s.padding; ++oh) {
    for (int64_t ow = left; ow < out_width && ow * s.stride <= at.column + s.padding; ++ow) {
      const int64_t from =
          ((at.image * out_height + oh) * out_width + ow) * s.channels + at.channel;
      float gradient[kC];
      int32_t won[kC];
      load_pack(dy, from, gradient);
      load_pack(winner, from, won);
#pragma unroll
      for (int j = 0; j < kC; ++j) {
        total[j] += won[j] == pixel ? gradient[j] : 0;
      }
    }
  }
  store_pack(dx, i * kC, total);
}

// A block computes one image and a tile of its channels.
template <class T, int kC>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    average_pixels_forward_kernel(Global<const T> x, Global<T> y, int64_t pixels,
                                  int64_t channels) {
  const int64_t channel = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kC;
  const bool used = channel < channels;
  float total[kC] = {};
  for (int64_t pixel = threadIdx.y; used && pixel < pixels; pixel += blockDim.y) {
    float values[kC];
    load_pack(x, (blockIdx.x * pixels + pixel) * channels + channel, values);
    AddAll{}(total, values);
  }
  combine_rows(total, AddAll{});
  if (used && threadIdx.y == 0) {
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      total[j] /= static_cast<float>(pixels);
    }
    store_pack(y, blockIdx.x * channels + channel, total);
  }
}

template <class T, int kC>
__global__ void __launch_bounds__(kThreads)
    average_pixels_backward_kernel(int64_t threads, Global<const T> dy, Global<T> dx, float beta,
                                   int64_t pixels, int64_t channels) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= threads) {
    return;
  }
  const int64_t packs = channels / kC, image = i / packs / pixels;
  float gradient[kC], old[kC] = {};
  load_pack(dy, image * channels + i % packs * kC, gradient);
  if (beta != 0) {
    load_pack(dx, i * kC, old);
  }
#pragma unroll
  for (int j = 0; j < kC; ++j) {
    gradient[j] = gradient[j] / static_cast<float>(pixels) + beta * old[j];
  }
  store_pack(dx, i * kC, gradient);
}

}  // namespace

template <class T>
void max_pool2d_forward(Cuda device, const Pool2dShape& shape, const T* x, T* y, int32_t* winner) {
  with_pack<T, int32_t>(packs_fit(shape.channels, x, y, winner), [&]<int kC>() {
    const int64_t threads =
        shape.batch * shape.out_height() * shape.out_width() * (shape.channels / kC);
    launch<max_pool2d_forward_kernel<T, kC>>(device, blocks_for(threads, kThreads), kThreads, 0,
                                             shape, threads, x, y, winner);
  });
}

template <class T>
void max_pool2d_backward(Cuda device, const Pool2dShape& shape, const T* dy, const int32_t* winner,
                         T* dx, Wide<T> beta) {
  with_pack<T, int32_t>(packs_fit(shape.channels, dy, winner, dx), [&]<int kC>() {
    const int64_t threads = shape.batch * shape.height * shape.width * (shape.channels / kC);
    launch<max_pool2d_backward_kernel<T, kC>>(device, blocks_for(threads, kThreads), kThreads, 0,
                                              shape, threads, dy, winner, dx, beta);
  });
}

template <class T>
void average_pixels_forward(Cuda device, const T* x, T* y, int64_t batch, int64_t pixels,
                            int64_t channels) {
  const ColumnGrid tiles(pixels, channels);
  with_pack<T>(packs_fit(channels, x, y), [&]<int kC>() {
    const dim3 grid(static_cast<unsigned>(batch), tiles.grid(kC).x);
    launch<average_pixels_forward_kernel<T, kC>>(device, grid, tiles.block(kC), 0, x, y, pixels,
                                                 channels);
  });
}

template <class T>
void average_pixels_backward(Cuda device, const T* dy, T* dx, Wide<T> beta, int64_t batch,
                             int64_t pixels, int64_t channels) {
  with_pack<T>(packs_fit(channels, dy, dx), [&]<int kC>() {
    const int64_t threads = batch * pixels * (channels / kC);
    launch<average_pixels_backward_kernel<T, kC>>(device, blocks_for(threads, kThreads), kThreads,
                                                  0, threads, dy, dx, beta, pixels, channels);
  });
}

#define TANDEM_POOL2D(T)                                                                       \
  template void max_pool2d_forward<T>(Cuda, const Pool2dShape&, const T*, T*, int32_t*);       \
  template void max_pool2d_backward<T>(Cuda, const Pool2dShape&, const T*, const int32_t*, T*, \
                                       float);                                                 \
  template void average_pixels_forward<T>(Cuda, const T*, T*, int64_t, int64_t, int64_t);      \
  template void average_pixels_backward<T>(Cuda, const T*, T*, float, int64_t, int64_t, int64_t);
TANDEM_FOR_GPU(TANDEM_POOL2D)

}  // namespace tandem::kernels

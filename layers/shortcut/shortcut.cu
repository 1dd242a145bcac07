#include "layers/shortcut/shortcut.h"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

// Block blockIdx.x computes one row of pixels of y. Its threads walk over pixels and channels.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads)
    shortcut_forward_kernel(ShortcutShape s, Global<const T> x, Global<T> y) {
  const int64_t n = blockIdx.x / s.out_height(), h = blockIdx.x % s.out_height() * s.stride;
  const int64_t from = (n * s.height + h) * s.width * s.in_channels;
  const int64_t to = blockIdx.x * s.out_width() * s.out_channels;
  const int channels = static_cast<int>(s.out_channels);
  const int end = static_cast<int>(s.out_width()) * channels;
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < end; i += kThreads * kWidth) {
    const int w = i / channels, c = i % channels;
    float value[kWidth] = {};
    if (c < s.in_channels) {
      load_pack(x, from + w * s.stride * s.in_channels + c, value);
    }
    store_pack(y, to + i, value);
  }
}

// A block computes one row of pixels of dx. Pixels that y skips have gradient zero.
template <int kWidth, bool kAdds, class T>
__global__ void __launch_bounds__(kThreads)
    shortcut_backward_kernel(ShortcutShape s, Global<const T> dy, Global<T> dx) {
  const int64_t n = blockIdx.x / s.height, h = blockIdx.x % s.height;
  const int64_t from = (n * s.out_height() + h / s.stride) * s.out_width() * s.out_channels;
  const int64_t to = blockIdx.x * s.width * s.in_channels;
  const int channels = static_cast<int>(s.in_channels), stride = static_cast<int>(s.stride);
  const int end = static_cast<int>(s.width) * channels;
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < end; i += kThreads * kWidth) {
    const int w = i / channels, c = i % channels;
    float value[kWidth] = {};
    if (h % stride == 0 && w % stride == 0) {
      load_pack(dy, from + w / stride * s.out_channels + c, value);
    } else if (kAdds) {
      continue;
    }
    if constexpr (kAdds) {
      float before[kWidth];
      load_pack(dx, to + i, before);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        value[k] += before[k];
      }
    }
    store_pack(dx, to + i, value);
  }
}

// True if a pack never holds channels of two pixels, nor channels of x together with zeros.
template <class T>
bool channels_fit(const ShortcutShape& s, const T* from, const T* to) {
  return packs_fit(s.in_channels, from, to) && packs_fit(s.out_channels, from, to);
}

}  // namespace

template <class T>
void shortcut_forward(Cuda device, const ShortcutShape& s, const T* x, T* y) {
  if (s.batch * s.height * s.width * s.out_channels == 0) {
    return;
  }
  const unsigned blocks = blocks_for(s.batch * s.out_height(), 1);
  with_pack<T>(channels_fit<T>(s, x, y), [&]<int kWidth>() {
    launch<shortcut_forward_kernel<kWidth, T>>(device, blocks, kThreads, 0, s, x, y);
  });
}

template <class T>
void shortcut_backward(Cuda device, const ShortcutShape& s, const T* dy, T* dx, Wide<T> beta) {
  if (s.batch * s.height * s.width * s.in_channels == 0) {
    return;
  }
  const unsigned blocks = blocks_for(s.batch * s.height, 1);
  with_pack<T>(channels_fit<T>(s, dy, dx), [&]<int kWidth>() {
    if (beta == 0) {
      launch<shortcut_backward_kernel<kWidth, false, T>>(device, blocks, kThreads, 0, s, dy, dx);
    } else {
      launch<shortcut_backward_kernel<kWidth, true, T>>(device, blocks, kThreads, 0, s, dy, dx);
    }
  });
}

#define TANDEM_SHORTCUT(T)                                                     \
  template void shortcut_forward<T>(Cuda, const ShortcutShape&, const T*, T*); \
  template void shortcut_backward<T>(Cuda, const ShortcutShape&, const T*, T*, float);
TANDEM_FOR_GPU(TANDEM_SHORTCUT)

}  // namespace tandem::kernels

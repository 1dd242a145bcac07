// Pooling of NHWC images.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// x [N, H, W, C]; returns [N, H_out, W_out, C] with H_out = (H + 2 * padding - kernel) / stride +
// 1, rounded down. Padding is never the maximum; padding <= kernel / 2, so that no window is empty.
// Of equal values the first gets the gradient. If a window has a NaN, the result is NaN.
Variable max_pool2d(Context& context, const Variable& x, int64_t kernel, int64_t stride,
                    int64_t padding = 0);

// x [N, H, W, C]; returns the mean over H and W, [N, C].
Variable global_average_pool(Context& context, const Variable& x);

// The sizes of a max pooling.
struct Pool2dShape {
  int64_t batch = 0, height = 0, width = 0, channels = 0;
  int64_t kernel = 1, stride = 1, padding = 0;

  TANDEM_HOST_DEVICE int64_t out_height() const {
    return (height + 2 * padding - kernel) / stride + 1;
  }
  TANDEM_HOST_DEVICE int64_t out_width() const {
    return (width + 2 * padding - kernel) / stride + 1;
  }
};

namespace kernels {

// winner [N, H_out, W_out, C]: the index ih * width + iw of the largest pixel.
template <class T>
void max_pool2d_forward(Cpu, const Pool2dShape& shape, const T* x, T* y, int32_t* winner);
template <class T>
void max_pool2d_forward(Cuda, const Pool2dShape& shape, const T* x, T* y, int32_t* winner);

// Windows may overlap; the order of each sum is fixed. beta = 0 overwrites dx, beta = 1 adds to it.
template <class T>
void max_pool2d_backward(Cuda, const Pool2dShape& shape, const T* dy, const int32_t* winner, T* dx,
                         Wide<T> beta);

// y [batch, channels] = mean over pixels of x [batch, pixels, channels], in a fixed order.
template <class T>
void average_pixels_forward(Cuda, const T* x, T* y, int64_t batch, int64_t pixels,
                            int64_t channels);

// dx = beta * dx + dy / pixels.
template <class T>
void average_pixels_backward(Cuda, const T* dy, T* dx, Wide<T> beta, int64_t batch, int64_t pixels,
                             int64_t channels);

}  // namespace kernels
}  // namespace tandem

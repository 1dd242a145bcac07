// Two-dimensional convolution (cross-correlation, as in every deep-learning library) on NHWC
// images.
//
// y[n, oh, ow, co] = sum over kh, kw, ci of
//     x[n, oh * stride - padding + kh, ow * stride - padding + kw, ci] * w[co, kh, kw, ci]
// with x zero outside the image.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

inline constexpr int64_t kMaxKernel = 16;  // largest kernel height and width

// The sizes of one convolution.
struct Conv2dShape {
  int64_t batch = 0, height = 0, width = 0, in_channels = 0;  // x [batch, height, width, in]
  int64_t out_channels = 0, kernel_h = 0, kernel_w = 0;       // w [out, kernel_h, kernel_w, in]
  int64_t stride = 1, padding = 0;

  // y [batch, out_height, out_width, out]
  int64_t out_height() const { return (height + 2 * padding - kernel_h) / stride + 1; }
  int64_t out_width() const { return (width + 2 * padding - kernel_w) / stride + 1; }

  int64_t x_elements() const { return batch * height * width * in_channels; }
  int64_t w_elements() const { return out_channels * kernel_h * kernel_w * in_channels; }
  int64_t y_elements() const { return batch * out_height() * out_width() * out_channels; }
  // Operations of the convolution or of one of its two gradients; a multiply-add counts as two.
  double flops() const {
    return 2.0 * static_cast<double>(y_elements()) *
           static_cast<double>(kernel_h * kernel_w * in_channels);
  }
};

// x [N, H, W, C_in], weight [C_out, KH, KW, C_in]; returns [N, H_out, W_out, C_out]. There is no
// bias, because a normalisation follows. Throws if the kernel is larger than 16 x 16 or than the
// padded image.
Variable conv2d(Context& context, const Variable& x, Parameter& weight, int64_t stride,
                int64_t padding);

namespace kernels {

// Sums are taken in Wide<T>. The same call gives the same bits every time, for any number of CPU
// threads.

// Workspace for each kernel below, in elements. On the CPU it depends on the current number of
// threads.
int64_t conv2d_forward_workspace(Device device, DType dtype, const Conv2dShape& shape);
int64_t conv2d_backward_data_workspace(Device device, DType dtype, const Conv2dShape& shape);
int64_t conv2d_backward_weight_workspace(Device device, DType dtype, const Conv2dShape& shape);

template <class T>
void conv2d_forward(Cpu, const Conv2dShape& shape, const T* x, const T* w, T* y,
                    Wide<T>* workspace);
template <class T>
void conv2d_forward(Cuda, const Conv2dShape& shape, const T* x, const T* w, T* y,
                    Wide<T>* workspace);

// dx = beta * dx + gradient.
template <class T>
void conv2d_backward_data(Cpu, const Conv2dShape& shape, const T* dy, const T* w, T* dx,
                          Wide<T> beta, Wide<T>* workspace);
template <class T>
void conv2d_backward_data(Cuda, const Conv2dShape& shape, const T* dy, const T* w, T* dx,
                          Wide<T> beta, Wide<T>* workspace);

// dw = beta * dw + gradient.
template <class T>
void conv2d_backward_weight(Cpu, const Conv2dShape& shape, const T* x, const T* dy, Wide<T>* dw,
                            Wide<T> beta, Wide<T>* workspace);
template <class T>
void conv2d_backward_weight(Cuda, const Conv2dShape& shape, const T* x, const T* dy, Wide<T>* dw,
                            Wide<T> beta, Wide<T>* workspace);

}  // namespace kernels
}  // namespace tandem

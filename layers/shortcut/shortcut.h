// The parameter-free shortcut of a residual block that changes shape: He et al. 2015
// (arXiv:1512.03385), option A.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// x [N, H, W, C] -> [N, ceil(H / stride), ceil(W / stride), out_channels]: every stride-th pixel,
// with zeros for the added channels. out_channels >= C.
Variable shortcut(Context& context, const Variable& x, int64_t stride, int64_t out_channels);

namespace kernels {

struct ShortcutShape {
  int64_t batch, height, width, in_channels, out_channels, stride;
  TANDEM_HOST_DEVICE int64_t out_height() const { return (height + stride - 1) / stride; }
  TANDEM_HOST_DEVICE int64_t out_width() const { return (width + stride - 1) / stride; }
};

template <class T>
void shortcut_forward(Cuda, const ShortcutShape& shape, const T* x, T* y);

// dx = beta * dx + gradient; beta is 0 or 1.
template <class T>
void shortcut_backward(Cuda, const ShortcutShape& shape, const T* dy, T* dx, Wide<T> beta);

}  // namespace kernels
}  // namespace tandem

#include "layers/shortcut/shortcut.h"

#include <algorithm>

namespace tandem {

namespace kernels {

template <class T>
void shortcut_forward(Cpu, const ShortcutShape& s, const T* x, T* y) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t h = 0; h < s.out_height(); ++h) {
      for (int64_t w = 0; w < s.out_width(); ++w) {
        const T* from =
            x + ((n * s.height + h * s.stride) * s.width + w * s.stride) * s.in_channels;
        T* to = y + ((n * s.out_height() + h) * s.out_width() + w) * s.out_channels;
        std::copy_n(from, s.in_channels, to);
        std::fill(to + s.in_channels, to + s.out_channels, T(0));
      }
    }
  }
}

template <class T>
void shortcut_backward(Cpu, const ShortcutShape& s, const T* dy, T* dx, Wide<T> beta) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t h = 0; h < s.height; ++h) {
      T* row = dx + (n * s.height + h) * s.width * s.in_channels;
      if (beta == 0) {
        std::fill_n(row, s.width * s.in_channels, T(0));
      }
      if (h % s.stride != 0) {
        continue;
      }
      const T* from = dy + (n * s.out_height() + h / s.stride) * s.out_width() * s.out_channels;
      for (int64_t w = 0; w < s.out_width(); ++w) {
        for (int64_t c = 0; c < s.in_channels; ++c) {
          T& sum = row[w * s.stride * s.in_channels + c];
          sum = T(Wide<T>(sum) + Wide<T>(from[w * s.out_channels + c]));
        }
      }
    }
  }
}

}  // namespace kernels

namespace {

struct ShortcutOp final : Op {
  kernels::ShortcutShape shape;

  std::string_view name() const override { return "shortcut"; }
  void backward(Context& context, Tensor& dy) override {
    const GradTarget dx = input(0).target(context);
    on_device(context.stream, touching(dy, dx), dy.dtype(), [&]<class T>(auto device) {
      kernels::shortcut_backward(device, shape, dy.data<T>(), dx.into.data<T>(), Wide<T>(dx.beta));
    });
  }
};

}  // namespace

Variable shortcut(Context& context, const Variable& x, int64_t stride, int64_t out_channels) {
  require(x.shape().rank() == 4 && out_channels >= x.shape()[3], "shortcut: ", x.shape(), " to ",
          out_channels, " channels");
  auto op = std::make_unique<ShortcutOp>();
  op->shape = {x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3], out_channels, stride};
  const kernels::ShortcutShape& s = op->shape;
  Tensor y = context.activation({s.batch, s.out_height(), s.out_width(), out_channels}, x.dtype());
  // Only the pixels of the result are read.
  on_device(context.stream, touching(y, y), x.dtype(), [&]<class T>(auto device) {
    kernels::shortcut_forward(device, s, x.data<T>(), y.data<T>());
  });
  return context.record(std::move(y), std::move(op), {x});
}

}  // namespace tandem

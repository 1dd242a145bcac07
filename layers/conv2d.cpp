#include "layers/conv2d.h"

namespace tandem {

namespace {

struct Conv2dOp final : Op {
  Tensor x;
  Conv2dShape shape;

  std::string_view name() const override { return "conv2d"; }
  void backward(Context& context, Tensor& dy) override {
    Parameter& weight = parameter(0);
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      {
        const GradTarget dw = grad_target(weight);
        const Tensor scratch = context.workspace(
            {kernels::conv2d_backward_weight_workspace<T>(device, shape)}, wide_of(dy.dtype()));
        kernels::conv2d_backward_weight(device, shape, x.data<T>(), dy.data<T>(), dw.into.data<W>(),
                                        W(dw.beta), scratch.data<W>());
      }
      if (input(0).wanted()) {
        const GradTarget dx = input(0).target(context);
        const Tensor scratch = context.workspace(
            {kernels::conv2d_backward_data_workspace<T>(device, shape)}, wide_of(dy.dtype()));
        kernels::conv2d_backward_data(device, shape, dy.data<T>(), weight.value.data<T>(),
                                      dx.into.data<T>(), W(dx.beta), scratch.data<W>());
      }
    });
  }
};

void check(const Conv2dShape& s) {
  require(s.batch >= 0 && s.in_channels > 0 && s.out_channels > 0 && s.stride > 0 && s.padding >= 0,
          "conv2d: sizes and stride must be positive");
  require(s.kernel_h > 0 && s.kernel_w > 0 && s.kernel_h <= kMaxKernel && s.kernel_w <= kMaxKernel,
          [&] { return str("conv2d: kernel ", s.kernel_h, " x ", s.kernel_w, " is too large"); });
  require(s.height + 2 * s.padding >= s.kernel_h && s.width + 2 * s.padding >= s.kernel_w, [&] {
    return str("conv2d: kernel ", s.kernel_h, " x ", s.kernel_w, " does not fit into image ",
               s.height, " x ", s.width, " with padding ", s.padding);
  });
}

}  // namespace

Variable conv2d(Context& context, const Variable& x, Parameter& weight, int64_t stride,
                int64_t padding) {
  require(
      x.shape().rank() == 4 && weight.shape.rank() == 4 && x.shape()[3] == weight.shape[3],
      [&] { return str("conv2d ", weight.name, ": x ", x.shape(), ", weight ", weight.shape); });
  const Conv2dShape shape{.batch = x.shape()[0],
                          .height = x.shape()[1],
                          .width = x.shape()[2],
                          .in_channels = x.shape()[3],
                          .out_channels = weight.shape[0],
                          .kernel_h = weight.shape[1],
                          .kernel_w = weight.shape[2],
                          .stride = stride,
                          .padding = padding};
  check(shape);
  auto op = std::make_unique<Conv2dOp>();
  op->x = x.value();
  op->shape = shape;
  Tensor y;
  on_device_and_float(context.stream, x.dtype(), [&]<class T>(auto device) {
    const Tensor scratch = context.workspace({kernels::conv2d_forward_workspace<T>(device, shape)},
                                             wide_of(x.dtype()));
    y = context.activation({shape.batch, shape.out_height(), shape.out_width(), shape.out_channels},
                           x.dtype());
    kernels::conv2d_forward(device, shape, x.data<T>(), weight.value.data<T>(), y.data<T>(),
                            scratch.data<Wide<T>>());
  });
  return context.record(std::move(y), std::move(op), {x}, {&weight});
}

}  // namespace tandem

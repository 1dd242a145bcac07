#include "layers/conv2d/conv2d.h"

namespace tandem {

namespace {

struct Conv2dOp final : Op {
  Tensor x;
  Conv2dShape shape;

  std::string_view name() const override { return "conv2d"; }
  void backward(Context& context, Tensor& dy) override {
    if (const GradTarget dw = parameter_target(0); dw.into) {
      differentiate_weight(context, dy, dw);
    }
    if (input(0).wanted()) {
      differentiate_x(context, dy);
    }
  }

 private:
  void differentiate_weight(Context& context, const Tensor& dy, const GradTarget& dw) {
    const Tensor scratch = context.workspace(
        {kernels::conv2d_backward_weight_workspace(context.stream.device(), dy.dtype(), shape)},
        wide_of(dy.dtype()));
    const Work work{.flops = shape.flops(), .bytes = touching(x, dy, dw).bytes};
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      kernels::conv2d_backward_weight(device, shape, x.data<T>(), dy.data<T>(), dw.into.data<W>(),
                                      W(dw.beta), scratch.data<W>());
    });
  }

  void differentiate_x(Context& context, const Tensor& dy) {
    const GradTarget dx = input(0).target(context);
    const Tensor scratch = context.workspace(
        {kernels::conv2d_backward_data_workspace(context.stream.device(), dy.dtype(), shape)},
        wide_of(dy.dtype()));
    const Work work{.flops = shape.flops(), .bytes = touching(dy, parameter(0).value, dx).bytes};
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      kernels::conv2d_backward_data(device, shape, dy.data<T>(), parameter(0).value.data<T>(),
                                    dx.into.data<T>(), W(dx.beta), scratch.data<W>());
    });
  }
};

void check(const Conv2dShape& s) {
  require(s.batch >= 0 && s.in_channels > 0 && s.out_channels > 0 && s.stride > 0 && s.padding >= 0,
          "conv2d: sizes and stride must be positive");
  require(s.kernel_h > 0 && s.kernel_w > 0 && s.kernel_h <= kMaxKernel && s.kernel_w <= kMaxKernel,
          "conv2d: kernel ", s.kernel_h, " x ", s.kernel_w, " is too large");
  require(s.height + 2 * s.padding >= s.kernel_h && s.width + 2 * s.padding >= s.kernel_w,
          "conv2d: kernel ", s.kernel_h, " x ", s.kernel_w, " does not fit into image ", s.height,
          " x ", s.width, " with padding ", s.padding);
}

}  // namespace

Variable conv2d(Context& context, const Variable& x, Parameter& weight, int64_t stride,
                int64_t padding) {
  require(x.shape().rank() == 4 && weight.shape.rank() == 4 && x.shape()[3] == weight.shape[3],
          "conv2d ", weight.name, ": x ", x.shape(), ", weight ", weight.shape);
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
  const Tensor scratch = context.workspace(
      {kernels::conv2d_forward_workspace(context.stream.device(), x.dtype(), shape)},
      wide_of(x.dtype()));
  Tensor y = context.activation(
      {shape.batch, shape.out_height(), shape.out_width(), shape.out_channels}, x.dtype());
  const Work work{.flops = shape.flops(), .bytes = touching(x.value(), weight.value, y).bytes};
  on_device(context.stream, work, x.dtype(), [&]<class T>(auto device) {
    kernels::conv2d_forward(device, shape, x.data<T>(), weight.value.data<T>(), y.data<T>(),
                            scratch.data<Wide<T>>());
  });
  return context.record(std::move(y), std::move(op), {x}, {&weight});
}

}  // namespace tandem

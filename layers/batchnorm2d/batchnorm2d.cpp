#include "layers/batchnorm2d/batchnorm2d.h"

namespace tandem {

namespace {

struct BatchNormOp final : Op {
  Tensor x;           // [rows, C]
  Tensor y;           // only after a residual, where x alone does not give the ReLU's mask
  Tensor mean, rstd;  // [C], f32 or, for f64 x, f64
  bool relu = false;
  bool residual = false;

  std::string_view name() const override { return "batchnorm2d"; }
  void backward(Context& context, Tensor& dy) override {
    const DType wide = wide_of(dy.dtype());
    const int64_t channels = mean.elements(), rows = x.elements() / channels;
    const Tensor sums = context.workspace({2, channels}, wide);
    const Tensor scratch = context.workspace(
        {kernels::batchnorm2d_workspace(context.stream.device(), rows, channels)}, wide);
    // With a residual the masked gradient is needed again, so it is stored: in dy's memory if no
    // one else reads dy.
    Tensor masked;
    if (y) {
      masked = dy.unique() ? dy : context.activation(dy.shape(), dy.dtype());
    }
    const Tensor& g = masked ? masked : dy;
    const GradTarget dx = input(0).wanted() ? x_target(context, dy) : GradTarget{};
    const Work work = touching(dy, x, y, masked, g, x, dx);
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      using enum kernels::ReluMask;
      const kernels::BatchChannels<T> of{mean.data<W>(),
                                         rstd.data<W>(),
                                         parameter(0).value.data<T>(),
                                         parameter(1).value.data<T>(),
                                         rows,
                                         channels};
      kernels::batchnorm2d_backward_sums(
          device, of, dy.data<T>(), x.data<T>(), y ? y.data<T>() : nullptr,
          y ? kFromOutput : (relu ? kFromInput : kNone), masked ? masked.data<T>() : nullptr,
          sums.data<W>(), scratch.data<W>());
      if (dx.into) {
        kernels::batchnorm2d_backward_data(device, of, g.data<T>(), x.data<T>(),
                                           relu && !y ? kFromInput : kNone, sums.data<W>(),
                                           dx.into.data<T>(), W(dx.beta));
      }
    });
    add_rows(1, sums.slice(0, channels).reshape({1, channels}));
    add_rows(0, sums.slice(channels, channels).reshape({1, channels}));
    if (residual && input(1).wanted()) {
      input(1).add(context, g);
    }
  }

 private:
  // Without a residual, dx may overwrite dy.
  GradTarget x_target(Context& context, const Tensor& dy) {
    if (!residual && dy.unique() && !input(0).slot()->grad) {
      input(0).add(context, dy);
      return {dy, 0};
    }
    return input(0).target(context);
  }
};

}  // namespace

Variable batchnorm2d(Context& context, const Variable& x, Parameter& gain, Parameter& bias,
                     RunningStatistics& statistics, const BatchNormOptions& options) {
  const int64_t channels = gain.shape.elements(), rows = x.elements() / channels;
  const Variable* residual = options.residual;
  require(x.shape()[-1] == channels && (!residual || residual->shape() == x.shape()),
          "batchnorm2d ", gain.name, ": x ", x.shape(), ", residual ",
          residual ? residual->shape() : Shape{}, ", channels ", channels);
  if (context.training && rows < 2) {
    fail(ExitCode::kConfig, gain.name, ": of a single image, one value per channel is left there, ",
         "which has no variance; use larger images, or a larger train.micro_batch");
  }
  require(context.training || !context.tape, "batchnorm2d ", gain.name,
          ": has no gradient outside training");
  auto op = std::make_unique<BatchNormOp>();
  op->x = x.value();
  op->mean = context.activation({channels}, wide_of(x.dtype()));
  op->rstd = context.activation({channels}, wide_of(x.dtype()));
  op->relu = options.relu;
  op->residual = residual != nullptr;
  Tensor y = context.activation(x.shape(), x.dtype());
  Tensor scratch;
  if (context.training) {
    scratch =
        context.workspace({kernels::batchnorm2d_workspace(context.stream.device(), rows, channels)},
                          wide_of(x.dtype()));
  }
  // The statistics read x, too.
  const Work work = touching(x.value(), x.value(), residual ? y : Tensor(), y);
  on_device(context.stream, work, x.dtype(), [&]<class T>(auto device) {
    using W = Wide<T>;
    W *mean = op->mean.data<W>(), *rstd = op->rstd.data<W>();
    if (context.training) {
      float* observed = context.recomputing ? nullptr : statistics.sum.data<float>();
      kernels::batchnorm2d_statistics(device, x.data<T>(), mean, rstd, observed, rows, channels,
                                      scratch.data<W>());
    } else {
      kernels::batchnorm2d_running(device, statistics.running.data<float>(), mean, rstd, channels);
    }
    kernels::batchnorm2d_normalize<T>(
        device, {mean, rstd, gain.value.data<T>(), bias.value.data<T>(), rows, channels},
        x.data<T>(), residual ? residual->data<T>() : nullptr, options.relu, y.data<T>());
  });
  if (options.relu && residual) {
    op->y = y;
  }
  if (residual) {
    return context.record(std::move(y), std::move(op), {x, *residual}, {&gain, &bias});
  }
  return context.record(std::move(y), std::move(op), {x}, {&gain, &bias});
}

BatchNorm2d::BatchNorm2d(const std::string& name, int64_t channels)
    : gain_{.name = name + ".gain", .shape = {channels}, .init = Initializer::constant(1)},
      bias_{.name = name + ".bias", .shape = {channels}, .init = Initializer::constant(0)},
      statistics_{.name = name, .channels = channels} {}

Variable BatchNorm2d::operator()(Context& context, const Variable& x,
                                 const BatchNormOptions& options) {
  return batchnorm2d(context, x, gain_, bias_, statistics_, options);
}

}  // namespace tandem

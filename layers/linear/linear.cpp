#include "layers/linear/linear.h"

#include "src/kernels/column_sums.h"
#include "src/product/product.h"

namespace tandem {

namespace {

struct LinearOp final : Op {
  Tensor x;           // [rows, in]
  Tensor gelu_input;  // if set, x is its GELU, and input(0) gets the gradient with respect to it

  std::string_view name() const override { return "linear"; }
  void backward(Context& context, Tensor& dy) override {
    const Parameter& weight = parameter(0);
    const int64_t out = dy.shape()[-1], in = weight.shape[1], rows = dy.elements() / out;
    if (parameter_wanted(1)) {
      add_rows(1, dy_row_sums() ? dy_row_sums() : sum_rows(context, dy, rows, out));
    }
    if (const GradTarget dweight = parameter_target(0); dweight.into) {
      multiply(context.stream, {.m = out,
                                .n = in,
                                .k = rows,
                                .a = {.data = dy, .transposed = true},
                                .b = {.data = x},
                                .d = {.data = dweight.into},
                                .beta = static_cast<double>(dweight.beta)});
    }
    if (!input(0).wanted()) {
      return;
    }
    const GradTarget dx = input(0).target(context);
    Product product{.m = rows,
                    .n = in,
                    .k = out,
                    .a = {.data = dy},
                    .b = {.data = weight.value},
                    .d = {.data = dx.into},
                    .beta = static_cast<double>(dx.beta),
                    .epilogue = gelu_input ? Epilogue::kGeluGradient : Epilogue::kNone,
                    .gelu_input = gelu_input};
    // A pass that multiplies by GELU's slope can take the sum over rows.
    const bool sums = gelu_input && input(0).wants_row_sums() && dx.beta == 0 &&
                      !fuses_epilogue(context.stream, product);
    if (sums) {
      product.epilogue = Epilogue::kNone;
      product.gelu_input = {};
    }
    multiply(context.stream, product);
    if (sums) {
      input(0).set_row_sums(times_gelu_slope(context, dx.into, rows, in));
    }
  }

 private:
  static Tensor partial_rows(Context& context, const Tensor& matrix, int64_t rows,
                             int64_t columns) {
    return context.workspace({kernels::row_chunks(context.stream.device(), rows, columns), columns},
                             wide_of(matrix.dtype()));
  }

  static Tensor sum_rows(Context& context, const Tensor& dy, int64_t rows, int64_t out) {
    Tensor partial = partial_rows(context, dy, rows, out);
    on_device(context.stream, touching(dy, partial), dy.dtype(), [&]<class T>(auto device) {
      kernels::sum_rows(device, dy.data<T>(), partial.data<Wide<T>>(), rows, out);
    });
    return partial;
  }

  // Multiplies dx by GELU's slope, and returns the sums of the result over chunks of its rows.
  Tensor times_gelu_slope(Context& context, const Tensor& dx, int64_t rows, int64_t in) const {
    Tensor partial = partial_rows(context, dx, rows, in);
    const Work work = touching(dx, dx, gelu_input, partial);
    on_device(context.stream, work, dx.dtype(), [&]<class T, class D>(D device) {
      if constexpr (std::is_same_v<D, Cuda>) {
        kernels::gelu_gradient_and_sums(device, dx.data<T>(), gelu_input.data<T>(), dx.data<T>(),
                                        partial.data<Wide<T>>(), rows, in);
      }
    });
    return partial;
  }
};

// Returns x W^T + b. If `gelu_input` is given, writes x W^T + b to it and returns its GELU.
Tensor forward(Context& context, const Tensor& x, const Parameter& weight, const Parameter* bias,
               const Tensor& gelu_input = {}) {
  const int64_t out = weight.value.shape()[0], in = weight.shape[1];
  require(x.shape()[-1] == in, [&] {
    return str("linear ", weight.name, ": x ", x.shape(), ", weight ", weight.shape);
  });
  Tensor y = context.activation(x.shape().with(-1, out), x.dtype());
  multiply(context.stream, {.m = x.elements() / in,
                            .n = out,
                            .k = in,
                            .a = {.data = x},
                            .b = {.data = weight.value, .transposed = true},
                            .d = {.data = y},
                            .bias = bias ? bias->value : Tensor(),
                            .epilogue = gelu_input ? Epilogue::kGelu : Epilogue::kNone,
                            .gelu_input = gelu_input});
  return y;
}

// Records y, which was computed from `read`: the value of x, or its GELU.
Variable record(Context& context, Tensor y, const Tensor& read, const Variable& x,
                Parameter& weight, Parameter* bias, const Tensor& gelu_input = {}) {
  auto op = std::make_unique<LinearOp>();
  op->x = read;
  op->gelu_input = gelu_input;
  Variable result = context.record(std::move(y), std::move(op), {x}, {&weight, bias});
  // On a CPU the backward pass of this layer takes the sum.
  if (result.wanted() && bias && bias->wanted() && context.stream.device() == Device::kCuda) {
    result.slot()->wants_row_sums = true;
  }
  return result;
}

}  // namespace

Variable linear(Context& context, const Variable& x, Parameter& weight, Parameter* bias) {
  return record(context, forward(context, x.value(), weight, bias), x.value(), x, weight, bias);
}

Variable linear(Context& context, const GeluVariable& x, Parameter& weight, Parameter* bias) {
  return record(context, forward(context, x.value, weight, bias), x.value, x.input, weight, bias,
                x.input.value());
}

GeluVariable linear_gelu(Context& context, const Variable& x, Parameter& weight, Parameter* bias) {
  Tensor sum = context.activation(x.shape().with(-1, weight.value.shape()[0]), x.dtype());
  Tensor value = forward(context, x.value(), weight, bias, sum);
  Variable input = record(context, std::move(sum), x.value(), x, weight, bias);
  if (!input.wanted() || !context.saves()) {
    input = Variable(Tensor(), input.slot());
  }
  return {std::move(input), std::move(value)};
}

Linear::Linear(const std::string& name, int64_t in, int64_t out, Initializer init, bool with_bias)
    : weight_{.name = name + ".weight", .shape = {out, in}, .init = init, .decay = true},
      bias_{.name = name + ".bias", .shape = {out}, .init = Initializer::constant(0)},
      with_bias_(with_bias) {}

Linear::Linear(const std::string& name, int64_t in, const std::vector<Outputs>& layers,
               Initializer init, bool with_bias)
    : Linear(name, in, 0, init, with_bias) {
  for (const Outputs& layer : layers) {
    weight_.pieces.push_back({layer.name + ".weight", Shape{layer.count, in}});
    bias_.pieces.push_back({layer.name + ".bias", Shape{layer.count}});
    weight_.shape = {weight_.shape[0] + layer.count, in};
  }
  bias_.shape = {weight_.shape[0]};
}

Linear Linear::classifier(const std::string& name, int64_t in, int64_t classes, Initializer init) {
  Linear layer(name, in, classes, init);
  layer.weight_.classes = layer.bias_.classes = true;
  return layer;
}

Variable Linear::operator()(Context& context, const Variable& x) {
  return linear(context, x, weight_, with_bias_ ? &bias_ : nullptr);
}

Variable Linear::operator()(Context& context, const GeluVariable& x) {
  return linear(context, x, weight_, with_bias_ ? &bias_ : nullptr);
}

GeluVariable Linear::gelu(Context& context, const Variable& x) {
  return linear_gelu(context, x, weight_, with_bias_ ? &bias_ : nullptr);
}

std::vector<Parameter*> Linear::parameters() {
  return with_bias_ ? std::vector{&weight_, &bias_} : std::vector{&weight_};
}

}  // namespace tandem

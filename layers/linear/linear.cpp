#include "layers/linear/linear.h"

#include <algorithm>

#include "src/kernels/column_chunks.h"
#include "src/kernels/map.h"
#include "src/product/product.h"

namespace tandem {

namespace kernels {

int64_t sum_rows_workspace(Device device, int64_t rows, int64_t columns) {
  return device == Device::kCpu ? 0 : ColumnChunks(rows, columns).chunks * columns;
}

template <class T>
void sum_rows(Cpu, const T* dy, Wide<T>* dbias, Wide<T> beta, Wide<T>*, int64_t rows,
              int64_t columns) {
  constexpr int64_t kStrip = 64;  // columns summed together: four cache lines of f32
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
  for (int64_t first = 0; first < columns; first += kStrip) {
    const int64_t count = std::min(kStrip, columns - first);
    Wide<T> total[kStrip] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = dy + r * columns + first;
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        total[j] += row[j];
      }
    }
    for (int64_t j = 0; j < count; ++j) {
      dbias[first + j] = total[j] + (beta == 0 ? 0 : beta * dbias[first + j]);
    }
  }
}

template void sum_rows<float>(Cpu, const float*, float*, float, float*, int64_t, int64_t);
template void sum_rows<double>(Cpu, const double*, double*, double, double*, int64_t, int64_t);
template void sum_rows<Bf16>(Cpu, const Bf16*, float*, float, float*, int64_t, int64_t);
template void sum_rows<Fp16>(Cpu, const Fp16*, float*, float, float*, int64_t, int64_t);

}  // namespace kernels

namespace {

struct LinearOp final : Op {
  Tensor x;           // [rows, in]
  Tensor gelu_input;  // if set, x is its GELU, and input(0) gets the gradient with respect to it

  std::string_view name() const override { return "linear"; }
  void backward(Context& context, Tensor& dy) override {
    const Parameter& weight = parameter(0);
    const int64_t out = dy.shape()[-1], in = weight.shape[1], rows = dy.elements() / out;
    if (const GradTarget dbias = parameter_target(1); dbias.into) {
      sum_bias_gradient(context, dy, dbias, rows, out);
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
    if (input(0).wanted()) {
      const GradTarget dx = input(0).target(context);
      multiply(context.stream, {.m = rows,
                                .n = in,
                                .k = out,
                                .a = {.data = dy},
                                .b = {.data = weight.value},
                                .d = {.data = dx.into},
                                .beta = static_cast<double>(dx.beta),
                                .epilogue = gelu_input ? Epilogue::kGeluGradient : Epilogue::kNone,
                                .gelu_input = gelu_input});
    }
  }

 private:
  static void sum_bias_gradient(Context& context, const Tensor& dy, const GradTarget& bias,
                                int64_t rows, int64_t out) {
    const Tensor sums = context.workspace(
        {kernels::sum_rows_workspace(context.stream.device(), rows, out)}, wide_of(dy.dtype()));
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      kernels::sum_rows(device, dy.data<T>(), bias.into.data<W>(), W(bias.beta), sums.data<W>(),
                        rows, out);
    });
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

std::unique_ptr<LinearOp> make_op(const Tensor& x, const Tensor& gelu_input = {}) {
  auto op = std::make_unique<LinearOp>();
  op->x = x;
  op->gelu_input = gelu_input;
  return op;
}

}  // namespace

Variable linear(Context& context, const Variable& x, Parameter& weight, Parameter* bias) {
  return context.record(forward(context, x.value(), weight, bias), make_op(x.value()), {x},
                        {&weight, bias});
}

Variable linear(Context& context, const GeluVariable& x, Parameter& weight, Parameter* bias) {
  return context.record(forward(context, x.value, weight, bias), make_op(x.value, x.input.value()),
                        {x.input}, {&weight, bias});
}

GeluVariable linear_gelu(Context& context, const Variable& x, Parameter& weight, Parameter* bias) {
  Tensor sum = context.activation(x.shape().with(-1, weight.value.shape()[0]), x.dtype());
  Tensor value = forward(context, x.value(), weight, bias, sum);
  Variable input = context.record(std::move(sum), make_op(x.value()), {x}, {&weight, bias});
  if (!input.wanted() || !context.saves()) {
    input = Variable(Tensor(), input.slot());
  }
  return {std::move(input), std::move(value)};
}

Linear::Linear(const std::string& name, int64_t in, int64_t out, Initializer init, bool with_bias)
    : weight_{.name = name + ".weight", .shape = {out, in}, .init = init, .decay = true},
      bias_{.name = name + ".bias", .shape = {out}, .init = Initializer::constant(0)},
      with_bias_(with_bias) {}

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

void Linear::visit(const ParameterVisitor& visitor) {
  visitor(weight_);
  if (with_bias_) {
    visitor(bias_);
  }
}

}  // namespace tandem

#include "layers/linear/linear.h"

#include <algorithm>

#include "src/kernels/column_sums.h"
#include "src/product/product.h"

namespace tandem {

namespace {

struct LinearOp final : Op {
  // [rows, in]: all that were read, or, if `gathers`, those of this rank. Empty if the weight is
  // frozen.
  Tensor x;
  Tensor gelu_input;  // if set, x is its GELU, and input(0) gets the gradient with respect to it
  bool gathers = false;

  std::string_view name() const override { return "linear"; }
  void backward(Context& context, Tensor& dy) override {
    if (parameter_wanted(1)) {
      add_rows(1, dy_row_sums() ? dy_row_sums() : sums_of_rows(context, dy));
    }
    if (gathers) {
      return backward_of_all_rows(context, dy);
    }
    differentiate_weight(context, dy, x);
    if (input(0).wanted()) {
      differentiate_input(context, dy, input(0).target(context));
    }
  }

 private:
  // The product for dx needs no x, and that for dW needs no dx: rows are on their way meanwhile.
  void backward_of_all_rows(Context& context, const Tensor& dy) {
    std::optional<RowsInFlight> all_x, dx;
    if (parameter_wanted(0)) {
      all_x = RowsInFlight::gather(context, x);
    }
    if (input(0).wanted()) {
      const Tensor all_dx =
          context.workspace(dy.shape().with(-1, parameter(0).shape[1]), dy.dtype());
      differentiate_input(context, dy, {.into = all_dx});
      dx = RowsInFlight::scatter(context, all_dx);
    }
    if (all_x) {
      differentiate_weight(context, dy, all_x->take(context));
    }
    if (dx) {
      input(0).add(context, dx->take(context));
    }
  }

  void differentiate_weight(Context& context, const Tensor& dy, const Tensor& all_x) {
    const int64_t out = dy.shape()[-1];
    if (const GradTarget dweight = parameter_target(0); dweight.into) {
      multiply(context.stream, {.m = out,
                                .n = all_x.shape()[-1],
                                .k = dy.elements() / out,
                                .a = {.data = dy, .transposed = true},
                                .b = {.data = all_x},
                                .d = {.data = dweight.into},
                                .beta = static_cast<double>(dweight.beta)});
    }
  }

  void differentiate_input(Context& context, const Tensor& dy, const GradTarget& dx) {
    const Parameter& weight = parameter(0);
    const int64_t out = dy.shape()[-1], in = weight.shape[1], rows = dy.elements() / out;
    Product product{.m = rows,
                    .n = in,
                    .k = out,
                    .a = {.data = dy},
                    .b = {.data = weight.value},
                    .d = {.data = dx.into},
                    .beta = static_cast<double>(dx.beta),
                    .epilogue = gelu_input ? Epilogue::kGeluGradient : Epilogue::kNone,
                    .gelu_input = gelu_input};
    const bool sums = gelu_input && input(0).wants_row_sums() && dx.beta == 0;
    // A pass that multiplies by GELU's slope can take the sum over rows.
    const bool in_one_pass = sums && !fuses_epilogue(context.stream, product);
    if (in_one_pass) {
      product.epilogue = Epilogue::kNone;
      product.gelu_input = {};
    }
    multiply(context.stream, product);
    if (sums) {
      input(0).set_row_sums(in_one_pass ? times_gelu_slope(context, dx.into, rows, in)
                                        : sums_of_rows(context, dx.into));
    }
  }

  // Multiplies dx by GELU's slope, and returns the sums of the result over chunks of its rows.
  Tensor times_gelu_slope(Context& context, const Tensor& dx, int64_t rows, int64_t in) const {
    Tensor partial = context.workspace({kernels::row_chunks(context.stream.device(), rows, in), in},
                                       wide_of(dx.dtype()));
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
  require(x.shape()[-1] == in, "linear ", weight.name, ": x ", x.shape(), ", weight ",
          weight.shape);
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
                Parameter& weight, Parameter* bias, bool gathers, const Tensor& gelu_input = {}) {
  auto op = std::make_unique<LinearOp>();
  op->x = weight.wanted() ? read : Tensor();
  op->gelu_input = gelu_input;
  op->gathers = gathers;
  Variable result = context.record(std::move(y), std::move(op), {x}, {&weight, bias});
  // On a CPU the backward pass of this layer takes the sum.
  if (result.wanted() && bias && bias->wanted() && context.stream.device() == Device::kCuda) {
    result.slot()->wants_row_sums = true;
  }
  return result;
}

// The rows that a product reads.
Tensor rows_of(Context& context, const Tensor& x, bool gathers) {
  return gathers ? RowsInFlight::gather(context, x).take(context) : x;
}

}  // namespace

Variable linear(Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                Reads reads) {
  const bool gathers = reads == Reads::kAllRows && context.tensor;
  Tensor y = forward(context, rows_of(context, x.value(), gathers), weight, bias);
  return record(context, std::move(y), x.value(), x, weight, bias, gathers);
}

Variable linear(Context& context, const GeluVariable& x, Parameter& weight, Parameter* bias) {
  return record(context, forward(context, x.value, weight, bias), x.value, x.input, weight, bias,
                false, x.input.value());
}

GeluVariable linear_gelu(Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                         Reads reads) {
  const bool gathers = reads == Reads::kAllRows && context.tensor;
  const Tensor rows = rows_of(context, x.value(), gathers);
  Tensor sum = context.activation(rows.shape().with(-1, weight.value.shape()[0]), rows.dtype());
  Tensor value = forward(context, rows, weight, bias, sum);
  Variable input = record(context, std::move(sum), x.value(), x, weight, bias, gathers);
  if (!input.wanted() || !context.saves()) {
    input = Variable(Tensor(), input.slot());
  }
  return {std::move(input), std::move(value)};
}

Linear::Linear(const std::string& name, int64_t in, int64_t out, Initializer init, bool with_bias)
    : weight_{.name = name + ".weight",
              .shape = {out, in},
              .init = init,
              .decay = true,
              .matrix = true},
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

Linear Linear::cut_by_outputs(const std::string& name, int64_t in,
                              const std::vector<Outputs>& layers, Initializer init, bool with_bias,
                              Cut cut) {
  Linear linear(name, in, layers, init, with_bias);
  linear.reads_ = Reads::kAllRows;
  for (Parameter* parameter : {&linear.weight_, &linear.bias_}) {
    int64_t rows = 0;
    for (Piece& piece : parameter->pieces) {
      piece.slice = cut.of(piece.slice.whole(), 0);
      rows += piece.slice.extent()[0];
    }
    parameter->shape = parameter->shape.with(0, rows);
  }
  return linear;
}

Linear Linear::cut_by_inputs(const std::string& name, int64_t in, int64_t out, Initializer init,
                             bool with_bias, Cut cut) {
  Linear linear(name, in, out, init, with_bias);
  linear.adds_rows_ = true;
  Parameter& weight = linear.weight_;
  weight.pieces = {{weight.name, cut.of(weight.shape, 1)}};
  weight.shape = weight.pieces[0].slice.extent();
  return linear;
}

Linear Linear::classifier(const std::string& name, int64_t in, int64_t classes, Initializer init) {
  Linear layer(name, in, classes, init);
  layer.weight_.classes = layer.bias_.classes = true;
  layer.weight_.matrix = false;
  return layer;
}

template <class X, class... How>
Variable Linear::apply(Context& context, const X& x, How... how) {
  if (adds_rows_ && context.tensor) {
    return scatter_add_rows(context, linear(context, x, weight_, nullptr, how...), bias());
  }
  return linear(context, x, weight_, bias(), how...);
}

// "blocks.0.attn.q.weight" is of the target "attn.q".
void Linear::adapt(const LoraOptions& lora) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<Adapters::Target> targets;
  const auto add_if_target = [&](const std::string& weight, Range outputs) {
    const bool found = std::ranges::any_of(lora.targets, [&](const std::string& target) {
      return weight.ends_with(str(".", target, kWeight));
    });
    if (found) {
      targets.push_back({weight.substr(0, weight.size() - kWeight.size()), outputs});
    }
  };
  add_if_target(weight_.name, {0, weight_.shape[0]});
  for (int64_t first = 0; const Piece& piece : weight_.pieces) {
    const int64_t count = piece.slice.extent()[0];
    if (piece.name != weight_.name) {
      add_if_target(piece.name, {first, first + count});
    }
    first += count;
  }
  if (!targets.empty()) {
    const std::string name = weight_.name.substr(0, weight_.name.size() - kWeight.size());
    adapters_.emplace(name, targets, weight_.shape[1], lora);
  }
}

Variable Linear::operator()(Context& context, const Variable& x) {
  Variable y = apply(context, x, reads_);
  return adapters_ ? (*adapters_)(context, x, std::move(y)) : y;
}

Variable Linear::operator()(Context& context, const GeluVariable& x) { return apply(context, x); }

GeluVariable Linear::gelu(Context& context, const Variable& x) {
  return linear_gelu(context, x, weight_, bias(), reads_);
}

std::vector<Parameter*> Linear::parameters() {
  std::vector<Parameter*> all = {&weight_};
  if (with_bias_) {
    all.push_back(&bias_);
  }
  if (adapters_) {
    std::ranges::copy(adapters_->parameters(), std::back_inserter(all));
  }
  return all;
}

}  // namespace tandem

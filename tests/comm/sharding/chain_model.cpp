#include "tests/comm/sharding/chain_model.h"

#include <cmath>

#include "src/kernels/convert.h"

namespace tandem::testing {

namespace {

float feature(int64_t sample, int64_t i) {
  return static_cast<float>((31 * sample + 17 * i) % 64 - 31) / 32;
}

struct BendOp final : Op {
  Tensor bend;  // [B]: the tanh
  int64_t first_sample = 0;

  std::string_view name() const override { return "bend"; }
  void backward(Context& context, Tensor& dy) override {
    const GradTarget target = parameter_target(0);
    const int64_t n = target.into ? target.into.elements() : 0, batch = dy.elements();
    const float scale = 1 / std::sqrt(static_cast<float>(n));
    const Tensor slopes = context.workspace({batch}, DType::kF32);
    const Tensor dx = context.activation({batch}, DType::kF32);
    for (int64_t b = 0; b < batch; ++b) {
      const float t = bend.data<float>()[b], above = dy.data<float>()[b];
      const float slope = (1 - t * t) * above;
      slopes.data<float>()[b] = scale * slope;
      dx.data<float>()[b] = 0.5f * above + slope;
    }
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;  // a micro-batch adds one number to a gradient
      for (int64_t b = 0; b < batch; ++b) {
        sum += slopes.data<float>()[b] * feature(first_sample + b, i);
      }
      float& gradient = target.into.data<float>()[i];
      gradient = (target.beta == 0 ? 0 : gradient) + sum;
    }
    if (input(0).wanted()) {
      input(0).add(context, dx);
    }
  }
};

Variable bend(Context& context, const Variable& x, Parameter& parameter) {
  const int64_t n = parameter.value.elements();
  const Tensor p = context.workspace({n}, DType::kF32);
  convert(context.stream, parameter.value.reshape({n}), p);
  auto op = std::make_unique<BendOp>();
  op->first_sample = context.numbers->first_sample;
  op->bend = context.activation(x.shape(), DType::kF32);
  const Tensor y = context.activation(x.shape(), DType::kF32);
  for (int64_t b = 0; b < x.elements(); ++b) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += p.data<float>()[i] * feature(op->first_sample + b, i);
    }
    const float t = std::tanh(x.data<float>()[b] + sum / std::sqrt(static_cast<float>(n)));
    op->bend.data<float>()[b] = t;
    y.data<float>()[b] = 0.5f * x.data<float>()[b] + t;
  }
  return context.record(y, std::move(op), {x}, {&parameter});
}

}  // namespace

ChainModel::ChainModel(const Links& links) : uses_(links.size()) {
  for (size_t block = 0; block < links.size(); ++block) {
    std::vector<Parameter*> own;
    for (const Link& link : links[block]) {
      parameters_.push_back({.name = str("p", parameters_.size()),
                             .shape = {link.count},
                             .init = Initializer::normal(1),
                             .decay = link.decay,
                             .blocks = link.tied ? 2 : 1,
                             .frozen = link.frozen});
      Parameter* parameter = &parameters_.back();
      own.push_back(parameter);
      if (!link.unused) {
        uses_[block].push_back(parameter);
      }
      if (link.tied) {
        uses_.back().push_back(parameter);
      }
    }
    add({{str("block", block), own}, [&uses = uses_[block]](Context& context, Flow x) {
           for (Parameter* parameter : uses) {
             x = {bend(context, x[0], *parameter)};
           }
           return x;
         }});
  }
}

Loss ChainModel::loss(Context& context, const Tensor& samples, const Tensor&) {
  Tensor start = context.activation(samples.shape(), DType::kF32);
  std::ranges::fill(start.as<float>(), 0.0f);
  return {run_blocks(context, blocks(), {Variable(start)})[0]};
}

}  // namespace tandem::testing

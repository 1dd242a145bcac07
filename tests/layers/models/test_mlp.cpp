#include <algorithm>
#include <cmath>

#include "layers/activation/activation.h"
#include "layers/models/mlp.h"
#include "tests/support/gradcheck.h"

namespace tandem::testing {
namespace {

MlpConfig small() {
  return {
      .image_height = 3, .image_width = 2, .channels = 2, .layers = 2, .width = 5, .classes = 4};
}

TEST(Mlp, GradientsMatchFiniteDifferences) {
  for (bool recompute : {false, true}) {
    Mlp model(small());
    const Tensor images = random_tensor({6, 3, 2, 2}, DType::kF64, 9);
    check_gradients({}, parameters_of(model), [&](Context& context, const std::vector<Variable>&) {
      context.recompute = recompute;
      return model.logits(context, images);
    });
  }
}

// The model equals the composition of its layers, bit by bit.
TEST(Mlp, HiddenLayersThenHead) {
  Mlp model(small());
  const std::vector<Parameter*> p = parameters_of(model);
  bind_parameters(p, DType::kF32);
  TestContext test;
  const Tensor images = random_tensor({6, 3, 2, 2}, DType::kF32, 9);
  Variable x(images.reshape({6, 12}));
  x = relu(test.context, linear(test.context, x, *p[0], p[1]));
  x = relu(test.context, linear(test.context, x, *p[2], p[3]));
  x = linear(test.context, x, *p[4], p[5]);
  EXPECT_EQ(values_of(model.logits(test.context, images).value()), values_of(x.value()));
}

TEST(Mlp, ParametersByBlock) {
  Mlp model(small());
  std::string listing;
  for (const Block& block : model.blocks()) {
    listing += block.name + ":";
    for (const Parameter* parameter : block.parameters) {
      listing += str(" ", parameter->name, parameter->shape, parameter->decay ? " decay" : "");
      const double deviation = std::sqrt(2.0 / static_cast<double>(parameter->shape[-1]));
      EXPECT_EQ(parameter->init.scale, parameter->decay ? deviation : 0);
    }
    listing += "\n";
  }
  EXPECT_EQ(listing,
            "layers.0: layers.0.weight[5, 12] decay layers.0.bias[5]\n"
            "layers.1: layers.1.weight[5, 5] decay layers.1.bias[5]\n"
            "head: head.weight[4, 5] decay head.bias[4]\n");
}

TEST(Mlp, FlopsCountEveryWeight) {
  Mlp model(small());
  EXPECT_EQ(model.flops_per_sample(), 6.0 * (12 * 5 + 5 * 5 + 5 * 4));
  const std::vector<Parameter*> parameters = parameters_of(model);
  parameters[2]->frozen = true;  // layers.1.weight has no product for its gradient
  EXPECT_EQ(model.flops_per_sample(), 6.0 * (12 * 5 + 5 * 4) + 4.0 * 5 * 5);
  parameters[0]->frozen = parameters[1]->frozen = true;  // nor has its input one
  EXPECT_EQ(model.flops_per_sample(), 2.0 * (12 * 5 + 5 * 5) + 6.0 * 5 * 4);
}

// Training needs only the losses, so it does not count correct targets as evaluation does.
TEST(Mlp, LossCountsCorrectTargetsOutsideTraining) {
  Mlp model(small());
  bind_parameters(parameters_of(model), DType::kF32);
  const Tensor images = random_tensor({2, 3, 2, 2}, DType::kF32, 9);
  TestContext test;
  const std::vector<double> logits = values_of(model.logits(test.context, images).value());
  const auto likeliest = [&](int64_t image) {
    const auto row = logits.begin() + 4 * image;
    return static_cast<int32_t>(std::max_element(row, row + 4) - row);
  };
  const std::vector<int32_t> labels = {likeliest(0), (likeliest(1) + 1) % 4};
  const Tensor targets = int_tensor({2}, labels);
  test.context.training = false;
  EXPECT_EQ(*model.loss(test.context, images, targets).correct.data<int64_t>(), 1);
  test.context.training = true;
  EXPECT_FALSE(model.loss(test.context, images, targets).correct);
}

TEST(Mlp, WrongSizes) {
  MlpConfig config = small();
  config.classes = 0;
  EXPECT_THROW(Mlp{config}, Error);
  Mlp model(small());
  bind_parameters(parameters_of(model), DType::kF32);
  TestContext test;
  EXPECT_THROW(model.logits(test.context, random_tensor({2, 3, 3, 2}, DType::kF32, 1)), Error);
}

}  // namespace
}  // namespace tandem::testing

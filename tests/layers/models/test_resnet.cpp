#include "layers/models/resnet.h"
#include "tests/support/gradcheck.h"

namespace tandem::testing {
namespace {

TEST(ResNet, HasThePublishedSizes) {
  // He et al. 2015, table 6: 0.27, 0.46, 0.66 and 0.85 million parameters.
  for (const auto& [depth, millions] : {std::pair{20, 0.27}, {32, 0.46}, {44, 0.66}, {56, 0.85}}) {
    int64_t count = 0;
    const auto model = make_resnet({.depth = depth});
    for (const Parameter* parameter : parameters_of(*model)) {
      count += parameter->shape.elements();
    }
    EXPECT_NEAR(static_cast<double>(count) / 1e6, millions, 0.01) << depth;
    EXPECT_EQ(model->blocks().size(), static_cast<size_t>((depth - 2) / 2 + 2));
  }
}

TEST(ResNet, FlopsCountEveryConvolution) {
  const auto model = make_resnet({.depth = 8, .in_channels = 2, .height = 5, .width = 8});
  // Images of 5 x 8, 3 x 4 and 2 x 2 pixels.
  const double stages =
      9.0 * (40 * 2 * 16 * 16 + 12 * (16 * 32 + 32 * 32) + 4 * (32 * 64 + 64 * 64));
  const double stem = 9.0 * 40 * 2 * 16, head = 64 * 10;
  EXPECT_EQ(model->flops_per_sample(), 6 * (stem + stages + head));
  for (const size_t block : {0, 4}) {
    model->blocks()[block].parameters[0]->frozen = true;
  }
  EXPECT_EQ(model->flops_per_sample(), 2 * stem + 4 * head + 6 * stages);
}

// He et al. 2015, "Delving Deep into Rectifiers", equation 14: the variance is 2 / fan-out.
TEST(ResNet, ConvolutionsBeginWithTheFanOut) {
  const auto model = make_resnet({.depth = 20});
  int convolutions = 0;
  for (const Parameter* parameter : parameters_of(*model)) {
    if (parameter->shape.rank() == 4) {
      ++convolutions;
      const auto fan_out = static_cast<double>(parameter->shape[0] * 3 * 3);
      EXPECT_EQ(parameter->init.kind, Initializer::Kind::kNormal) << parameter->name;
      EXPECT_EQ(parameter->init.scale, std::sqrt(2 / fan_out)) << parameter->name;
    }
  }
  EXPECT_EQ(convolutions, 19);
}

// Recomputing blocks changes no bit of a gradient, and observes their statistics only once.
TEST(ResNet, RecomputeChangesNoBit) {
  std::vector<std::vector<double>> results[2];
  for (const bool recompute : {false, true}) {
    const auto model = make_resnet({.depth = 8, .height = 8, .width = 8});
    const std::vector<Parameter*> parameters = parameters_of(*model);
    bind_parameters(parameters, DType::kF32, 3, 0.2);
    for (RunningStatistics* statistics : model->statistics()) {
      statistics->sum = Tensor::zeros(test_memory(), {2, statistics->channels}, DType::kF32,
                                      MemoryClass::kOptimizer);
    }
    TestContext test;
    test.context.recompute = recompute;
    const Variable logits =
        model->logits(test.context, random_tensor({4, 8, 8, 3}, DType::kF32, 5));
    test.tape.backward(test.context, logits, 1.0);
    for (const Parameter* parameter : parameters) {
      results[recompute].push_back(values_of(parameter->grad));
    }
    for (const RunningStatistics* statistics : model->statistics()) {
      results[recompute].push_back(values_of(statistics->sum));
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace tandem::testing

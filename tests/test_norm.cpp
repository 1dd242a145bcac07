#include <omp.h>

#include <cmath>

#include "layers/add.h"
#include "layers/norm.h"
#include "tests/gradcheck.h"

namespace tandem::testing {
namespace {

Parameter make(const char* name, Shape shape) { return Parameter{.name = name, .shape = shape}; }

TEST(Norm, LayerNormGradients) {
  Parameter gain = make("gain", {7}), bias = make("bias", {7});
  check_gradients({Shape{2, 3, 7}}, {&gain, &bias},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return layer_norm(context, in[0], gain, bias);
                  });
}

TEST(Norm, RmsNormGradients) {
  Parameter gain = make("gain", {9});
  check_gradients({Shape{4, 9}}, {&gain}, [&](Context& context, const std::vector<Variable>& in) {
    return rms_norm(context, in[0], gain);
  });
}

// 70 rows are three chunks of the parameter gradients' sums, the last one partial.
TEST(Norm, GradientsOverSeveralChunks) {
  Parameter gain = make("gain", {5}), bias = make("bias", {5}), rms = make("rms", {5});
  check_gradients({Shape{70, 5}}, {&gain, &bias, &rms},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return rms_norm(context, layer_norm(context, in[0], gain, bias), rms);
                  });
}

// The gradients of x, gain and bias add to what is there.
TEST(Norm, GradientsAccumulate) {
  Parameter gain = make("gain", {6}), bias = make("bias", {6});
  check_gradients({Shape{5, 6}}, {&gain, &bias},
                  [&](Context& context, const std::vector<Variable>& in) {
                    const Variable y = layer_norm(context, in[0], gain, bias);
                    return add(context, in[0], layer_norm(context, y, gain, bias));
                  });
}

// Rows of x have mean 1000 and deviation 1: a variance from E[x^2] - E[x]^2 would lose all digits
// in f32. The error of x itself is 1000 * 2^-24 = 6e-5, that of the mean no more.
TEST(Norm, LargeMeanKeepsPrecision) {
  const int64_t rows = 3, width = 257;
  Parameter gain = make("gain", {width}), bias = make("bias", {width});
  bind_parameters(std::vector<Parameter*>{&gain, &bias}, DType::kF32);
  const Tensor x = random_tensor({rows, width}, DType::kF32, 5);
  for (float& value : x.as<float>()) {
    value += 1000;
  }
  TestContext test;
  const Variable y = layer_norm(test.context, Variable(x), gain, bias);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data<float>() + r * width;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < width; ++j) {
      mean += row[j] / static_cast<double>(width);
    }
    for (int64_t j = 0; j < width; ++j) {
      variance += (row[j] - mean) * (row[j] - mean) / static_cast<double>(width);
    }
    for (int64_t j = 0; j < width; ++j) {
      const double g = gain.value.data<float>()[j], b = bias.value.data<float>()[j];
      const double expected = (row[j] - mean) / std::sqrt(variance + 1e-5) * g + b;
      EXPECT_NEAR(y.data<float>()[r * width + j], expected, 2e-4 * (1 + std::abs(g)));
    }
  }
}

TEST(Norm, BitsDoNotDependOnThreads) {
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    Parameter gain = make("gain", {130}), bias = make("bias", {130});
    bind_parameters(std::vector<Parameter*>{&gain, &bias}, DType::kF32);
    const Variable x = Variable::leaf(random_tensor({200, 130}, DType::kF32, 3));
    TestContext test;
    test.tape.backward(test.context, layer_norm(test.context, x, gain, bias),
                       random_tensor({200, 130}, DType::kF32, 4));
    std::vector<double> all = values_of(x.slot()->grad);
    for (const Tensor& grad : {gain.grad, bias.grad}) {
      const std::vector<double> more = values_of(grad);
      all.insert(all.end(), more.begin(), more.end());
    }
    results.push_back(all);
  }
  omp_set_num_threads(omp_get_num_procs());
  EXPECT_EQ(results[0], results[1]);
}

TEST(Norm, WrongWidthNamesTheLayer) {
  Parameter gain = make("blocks.3.norm_1.gain", {4});
  bind_parameters(std::vector<Parameter*>{&gain}, DType::kF32);
  TestContext test;
  const Variable x(random_tensor({3, 5}, DType::kF32, 1));
  try {
    rms_norm(test.context, x, gain);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("blocks.3.norm_1"), std::string::npos) << error.what();
  }
}

TEST(Norm, ParameterNames) {
  std::vector<std::string> names;
  LayerNorm layer("ln_f", 3);
  RmsNorm rms("norm_f", 3);
  const auto collect = [&](Parameter& parameter) {
    names.push_back(parameter.name);
    EXPECT_FALSE(parameter.decay) << parameter.name;
  };
  layer.visit(collect);
  rms.visit(collect);
  EXPECT_EQ(names, (std::vector<std::string>{"ln_f.gain", "ln_f.bias", "norm_f.gain"}));
}

}  // namespace
}  // namespace tandem::testing

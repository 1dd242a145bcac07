#include <omp.h>

#include <cmath>

#include "layers/add/add.h"
#include "layers/norm/norm.h"
#include "tests/support/device_check.h"

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

// The sums of the parameters' gradients take 70 rows in three chunks, the last one partial.
TEST(Norm, GradientsOverSeveralChunks) {
  Parameter gain = make("gain", {5}), bias = make("bias", {5}), rms = make("rms", {5});
  check_gradients({Shape{70, 5}}, {&gain, &bias, &rms},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return rms_norm(context, layer_norm(context, in[0], gain, bias), rms);
                  });
}

// The gradients of x, gain and bias are added to earlier ones.
TEST(Norm, GradientsAccumulate) {
  Parameter gain = make("gain", {6}), bias = make("bias", {6});
  check_gradients({Shape{5, 6}}, {&gain, &bias},
                  [&](Context& context, const std::vector<Variable>& in) {
                    const Variable y = layer_norm(context, in[0], gain, bias);
                    return add(context, in[0], layer_norm(context, y, gain, bias));
                  });
}

// The gradient of the gain is added to that of the second norm; the bias has no earlier gradient.
TEST(Norm, DevicesAgreeWhenOnlyTheGainIsShared) {
  Parameter gain = make("gain", {32}), bias = make("bias", {32});
  check_devices({Shape{37, 32}}, {&gain, &bias},
                [&](Context& context, const std::vector<Variable>& in) {
                  return rms_norm(context, layer_norm(context, in[0], gain, bias), gain);
                },
                {.terms = 2 * (37 + 32), .roundings = 8});
}

// Row sums have `width` terms, those of the parameters' gradients `rows`.
void check_norms(int64_t rows, int64_t width) {
  SCOPED_TRACE(str(rows, " x ", width));
  Parameter gain = make("gain", {width}), bias = make("bias", {width});
  check_devices({Shape{rows, width}}, {&gain, &bias},
                [&](Context& context, const std::vector<Variable>& in) {
                  return layer_norm(context, in[0], gain, bias);
                },
                {.terms = rows + width});
  check_devices({Shape{rows, width}}, {&gain},
                [&](Context& context, const std::vector<Variable>& in) {
                  return rms_norm(context, in[0], gain);
                },
                {.terms = rows + width});
}

// 37 rows take three blocks in a GPU's backward; rows that are whole packs of 16 bytes or not.
TEST(Norm, DevicesAgree) {
  for (int64_t width : {7, 31, 32, 96, 100, 257}) {
    check_norms(37, width);
  }
  check_norms(4300, 16);  // more rows than a GPU's forward takes in one step
}

// Every way to hold a row in registers, each at a width that gives some threads fewer packs, and
// rows that are too long for registers.
TEST(Norm, DevicesAgreeOnWideRows) {
  for (int64_t width : {264, 520, 1032, 2056, 4104, 8200}) {
    check_norms(3, width);
  }
  // In a GPU's backward, blocks of several rows that take several steps, the last one partial.
  for (int64_t width : {520, 776, 1032, 1544}) {
    check_norms(40, width);
  }
}

// In a row of one element, the value equals its mean if both are rounded alike: the result is the
// bias, and the gradient is zero.
TEST(Norm, RowsOfOneElement) {
  for_each_device([](Device device) {
    TestContext test(device);
    Parameter gain = make("gain", {1}), bias = make("bias", {1});
    bind_parameters(std::vector<Parameter*>{&gain, &bias}, DType::kF32);
    for (Parameter* parameter : {&gain, &bias}) {
      parameter->value = to_device(parameter->value, device);
      parameter->grad = to_device(parameter->grad, device);
    }
    const Variable x = Variable::leaf(to_device(random_tensor({9, 1}, DType::kF32, 1), device));
    const Variable y = layer_norm(test.context, x, gain, bias);
    EXPECT_EQ(values_of(y.value()), std::vector<double>(9, values_of(bias.value)[0]));
    test.tape.backward(test.context, y, 1.0);
    const double rstd = 1 / std::sqrt(1e-5);
    for (double value : values_of(x.slot()->grad)) {
      EXPECT_NEAR(value, 0, 4 * 0x1p-24 * rstd * std::abs(values_of(gain.value)[0]));
    }
    EXPECT_EQ(values_of(gain.grad)[0], 0);
    EXPECT_EQ(values_of(bias.grad)[0], 9);
  });
}

using AddNorm = std::function<Normalized(Context&, const Variable& x, Variable branch)>;

// The residual stream is used again after the norm, as in a transformer block.
OpUnderTest residual_block(AddNorm add_norm) {
  return [=](Context& context, const std::vector<Variable>& in) {
    const Normalized first = add_norm(context, in[0], in[1]);
    const Normalized second = add_norm(context, first.sum, first.y);
    return add(context, second.sum, second.y);
  };
}

TEST(AddNorm, GradientsMatchFiniteDifferences) {
  Parameter gain = make("gain", {6}), bias = make("bias", {6});
  check_gradients({Shape{5, 6}, Shape{5, 6}}, {&gain, &bias},
                  residual_block([&](Context& context, const Variable& x, Variable branch) {
                    return add_layer_norm(context, x, std::move(branch), gain, bias);
                  }));
  check_gradients({Shape{5, 6}, Shape{5, 6}}, {&gain},
                  residual_block([&](Context& context, const Variable& x, Variable branch) {
                    return add_rms_norm(context, x, std::move(branch), gain);
                  }));
}

// Sums and norms are rounded several times in forward, and so are the gradients in backward.
TEST(AddNorm, DevicesAgree) {
  for (int64_t width : {31, 96}) {
    Parameter gain = make("gain", {width}), bias = make("bias", {width});
    check_devices({Shape{19, width}, Shape{19, width}}, {&gain, &bias},
                  residual_block([&](Context& context, const Variable& x, Variable branch) {
                    return add_layer_norm(context, x, std::move(branch), gain, bias);
                  }),
                  {.terms = 19 + width, .roundings = 16});
  }
}

// All results and gradients of an op on leaves of the given shape.
std::vector<double> everything_of(Device device, DType dtype, Shape shape,
                                  const std::vector<Parameter*>& parameters,
                                  const OpUnderTest& op) {
  TestContext test(device);
  bind_parameters(parameters, DType::kF32);
  for (Parameter* parameter : parameters) {
    parameter->value = to_device(rounded_to(parameter->value, dtype), device);
    parameter->grad = to_device(parameter->grad, device);
  }
  std::vector<Variable> inputs;
  for (uint64_t seed : {1, 2}) {
    const Tensor x = random_tensor(shape, DType::kF32, seed);
    inputs.push_back(Variable::leaf(to_device(rounded_to(x, dtype), device)));
  }
  const Variable y = op(test.context, inputs);
  std::vector<double> all = values_of(y.value());
  test.tape.backward(test.context, y, 1.0);
  const auto append = [&](const Tensor& tensor) {
    const std::vector<double> more = values_of(tensor);
    all.insert(all.end(), more.begin(), more.end());
  };
  for (const Variable& input : inputs) {
    append(input.slot()->grad);
  }
  for (Parameter* parameter : parameters) {
    append(parameter->grad);
  }
  return all;
}

TEST(AddNorm, FusedHasTheBitsOfSeparateSteps) {
  for_each_device([](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      for (int64_t width : {33, 96, 2056}) {
        Parameter gain = make("gain", {width}), bias = make("bias", {width});
        const auto run = [&](const AddNorm& add_norm) {
          return everything_of(device, dtype, {5, width}, {&gain, &bias}, residual_block(add_norm));
        };
        const auto fused = run([&](Context& context, const Variable& x, Variable branch) {
          return add_layer_norm(context, x, std::move(branch), gain, bias);
        });
        const auto separate = run([&](Context& context, const Variable& x, Variable branch) {
          const Variable sum = add(context, x, std::move(branch));
          return Normalized{sum, layer_norm(context, sum, gain, bias)};
        });
        EXPECT_EQ(fused, separate) << name_of(dtype) << " " << width;
      }
    }
  });
}

// The sum takes the memory of a branch that nobody else holds; any other branch stays unchanged.
TEST(AddNorm, ReusesOnlyMemoryOfItsOwn) {
  for_each_device([](Device device) {
    TestContext test(device);
    Parameter gain = make("gain", {40});
    bind_parameters(std::vector<Parameter*>{&gain}, DType::kF32);
    gain.value = to_device(gain.value, device);
    const Variable x(to_device(random_tensor({3, 40}, DType::kF32, 1), device));
    Variable branch(to_device(random_tensor({3, 40}, DType::kF32, 2), device));
    const std::vector<double> before = values_of(branch.value());
    const Normalized kept = add_rms_norm(test.context, x, branch, gain);
    EXPECT_EQ(values_of(branch.value()), before);
    const float* memory = branch.data<float>();
    const Normalized reused = add_rms_norm(test.context, x, std::move(branch), gain);
    EXPECT_EQ(reused.sum.data<float>(), memory);
    EXPECT_EQ(values_of(reused.sum.value()), values_of(kept.sum.value()));
    EXPECT_EQ(values_of(reused.y.value()), values_of(kept.y.value()));
  });
}

TEST(AddNorm, ShapesMustAgree) {
  TestContext test;
  Norm norm("blocks.3.norm_2", 4, kNormEpsilon, false);
  bind_parameters(norm.parameters(), DType::kF32);
  const Variable x(random_tensor({3, 4}, DType::kF32, 1)), y(random_tensor({4}, DType::kF32, 1));
  EXPECT_THROW(norm.add(test.context, x, y), Error);
  EXPECT_EQ(norm.add(test.context, x, x).y.shape(), x.shape());
}

// The variance is about 1/12; 0.5 is added, in the fast kernels (96) and in those for any width
// (97).
TEST(Norm, EpsilonIsAddedToTheVariance) {
  for (int64_t width : {96, 97}) {
    for (bool centered : {true, false}) {
      const Tensor x = random_tensor({2, width}, DType::kF32, 5);
      for_each_device([&](Device device) {
        TestContext test(device);
        Parameter gain = make("gain", {width}), bias = make("bias", {width});
        std::vector<Parameter*> parameters{&gain, &bias};
        bind_parameters(parameters, DType::kF32);
        const Tensor gains = gain.value, biases = bias.value;
        gain.value = to_device(gains, device);
        bias.value = to_device(biases, device);
        const Variable input(to_device(x, device));
        const std::vector<double> actual =
            values_of((centered ? layer_norm(test.context, input, gain, bias, 0.5)
                                : rms_norm(test.context, input, gain, 0.5))
                          .value());
        for (int64_t r = 0; r < 2; ++r) {
          const float* row = x.data<float>() + r * width;
          double mean = 0, variance = 0;
          for (int64_t j = 0; centered && j < width; ++j) {
            mean += row[j] / static_cast<double>(width);
          }
          for (int64_t j = 0; j < width; ++j) {
            variance += (row[j] - mean) * (row[j] - mean) / static_cast<double>(width);
          }
          for (int64_t j = 0; j < width; ++j) {
            const double normal = (row[j] - mean) / std::sqrt(variance + 0.5);
            const double shift = centered ? biases.data<float>()[j] : 0;
            EXPECT_NEAR(actual[r * width + j], normal * gains.data<float>()[j] + shift, 1e-5);
          }
        }
      });
    }
  }
}

TEST(Norm, SameBitsEachTime) {
  for_each_device([](Device device) {
    for (int64_t width : {96, 100, 1025}) {
      Parameter gain = make("gain", {width}), bias = make("bias", {width});
      const auto run = [&] {
        return everything_of(device, DType::kF32, {70, width}, {&gain, &bias},
                             [&](Context& context, const std::vector<Variable>& in) {
                               return add(context, layer_norm(context, in[0], gain, bias), in[1]);
                             });
      };
      const std::vector<double> first = run();
      EXPECT_EQ(run(), first) << width;
    }
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
  const Tensor gains = gain.value, biases = bias.value;
  for_each_device([&](Device device) {
    gain.value = to_device(gains, device);
    bias.value = to_device(biases, device);
    TestContext test(device);
    const Variable y = layer_norm(test.context, Variable(to_device(x, device)), gain, bias);
    const std::vector<double> actual = values_of(y.value());
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
        const double g = gains.data<float>()[j], b = biases.data<float>()[j];
        const double expected = (row[j] - mean) / std::sqrt(variance + 1e-5) * g + b;
        EXPECT_NEAR(actual[r * width + j], expected, 2e-4 * (1 + std::abs(g)));
      }
    }
  });
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
  Norm layer("ln_f", 3);
  Norm rms("norm_f", 3, kNormEpsilon, false);
  for (const Parameter* parameter : parameters_in(layer, rms)) {
    names.push_back(parameter->name);
    EXPECT_FALSE(parameter->decay) << parameter->name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"ln_f.gain", "ln_f.bias", "norm_f.gain"}));
}

}  // namespace
}  // namespace tandem::testing

#include <algorithm>
#include <cmath>
#include <limits>

#include "layers/batchnorm2d/batchnorm2d.h"
#include "layers/conv2d/conv2d.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

struct Statistics {
  std::vector<double> mean, rstd;
  std::vector<float> observed;  // [2, C]
};

template <class T>
Statistics run_statistics(const Tensor& x, int64_t channels) {
  const int64_t rows = x.elements() / channels;
  std::vector<T> mean(channels), rstd(channels);
  std::vector<T> workspace(kernels::batchnorm2d_workspace(Cpu{}, rows, channels),
                           std::numeric_limits<T>::quiet_NaN());
  std::vector<float> observed(2 * channels, 1.0f);
  kernels::batchnorm2d_statistics(Cpu{}, x.data<T>(), mean.data(), rstd.data(), observed.data(),
                                  rows, channels, workspace.data());
  return {{mean.begin(), mean.end()}, {rstd.begin(), rstd.end()}, observed};
}

// The definition, as two passes of sums in f64.
Statistics plain_statistics(const Tensor& x, int64_t channels) {
  const std::vector<double> values = values_of(x);
  const int64_t rows = x.elements() / channels;
  Statistics result;
  result.observed.resize(2 * channels);
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t row = 0; row < rows; ++row) {
      sum += values[row * channels + c];
    }
    const double mean = sum / static_cast<double>(rows);
    for (int64_t row = 0; row < rows; ++row) {
      squares += std::pow(values[row * channels + c] - mean, 2);
    }
    result.mean.push_back(mean);
    result.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(rows) + 1e-5));
    result.observed[c] = static_cast<float>(1 + mean);
    result.observed[channels + c] = static_cast<float>(1 + squares / static_cast<double>(rows - 1));
  }
  return result;
}

// x = offset + normal numbers.
template <class T>
Tensor shifted(int64_t rows, int64_t channels, double offset) {
  const Tensor x = random_tensor({rows, channels}, dtype_of<T>, 5);
  for (T& value : x.as<T>()) {
    value += static_cast<T>(offset);
  }
  return x;
}

// A chunk of at most 256 rows is summed in T, and the sums of chunks in f64. The mean of a chunk
// errs by at most 258 u (|offset| + spread), its squared deviations by a relative 260 u. The spread
// is one, and normal numbers are below 5.
template <class T>
void check_statistics(int64_t rows, int64_t channels, double offset) {
  SCOPED_TRACE(str(rows, " x ", channels, " ", name_of(dtype_of<T>)));
  const Tensor x = shifted<T>(rows, channels, offset);
  const Statistics expected = plain_statistics(x, channels);
  const Statistics actual = run_statistics<T>(x, channels);
  const double roundoff = std::numeric_limits<T>::epsilon() / 2;
  const double mean_bound = 258 * roundoff * (offset + 5);
  // An error e of a chunk's mean adds e^2 to its variance.
  const double variance_bound = 262 * roundoff + mean_bound * mean_bound;
  for (int64_t c = 0; c < channels; ++c) {
    EXPECT_NEAR(actual.mean[c], expected.mean[c], mean_bound);
    EXPECT_NEAR(actual.rstd[c], expected.rstd[c],
                expected.rstd[c] * 2 * variance_bound * std::pow(expected.rstd[c], 2));
    // The observed figures are f32: rounded, and added to the one that was there.
    EXPECT_NEAR(actual.observed[c], expected.observed[c],
                mean_bound + 0x1p-23 * (1 + std::abs(expected.mean[c])));
    EXPECT_NEAR(actual.observed[channels + c], expected.observed[channels + c],
                (variance_bound + 0x1p-22) * expected.observed[channels + c]);
  }
}

TEST(BatchNorm2dKernels, StatisticsMatchPlainSums) {
  for (int64_t channels : {1, 3, 5, 16, 17, 64, 100}) {
    for (int64_t rows : {2, 255, 256, 257, 1000}) {
      check_statistics<float>(rows, channels, 0);
      check_statistics<double>(rows, channels, 0);
    }
  }
}

struct Layer {
  explicit Layer(int64_t channels, DType dtype, double scale = 1.0) {
    gain.shape = bias.shape = {channels};
    statistics.channels = channels;
    statistics.sum =
        Tensor::zeros(test_memory(), {2, channels}, DType::kF32, MemoryClass::kParameters);
    statistics.running =
        Tensor::zeros(test_memory(), {2, channels}, DType::kF32, MemoryClass::kParameters);
    bind_parameters(std::vector<Parameter*>{&gain, &bias}, dtype, 9, scale);
  }
  Variable operator()(Context& context, const Variable& x, const BatchNormOptions& options = {}) {
    return batchnorm2d(context, x, gain, bias, statistics, options);
  }
  void move_to(Device device) {
    for (Tensor* tensor : {&gain.value, &gain.grad, &bias.value, &bias.grad}) {
      *tensor = to_device(*tensor, device);
    }
  }
  Parameter gain{.name = "gain", .shape = {}};
  Parameter bias{.name = "bias", .shape = {}};
  RunningStatistics statistics{.name = "bn"};
};

TEST(BatchNorm2d, GradientsMatchFiniteDifferences) {
  for (const bool relu : {false, true}) {
    for (int64_t channels : {3, 20}) {
      Layer layer(channels, DType::kF64);
      check_gradients({Shape{3, 2, 4, channels}}, {&layer.gain, &layer.bias},
                      [&](Context& context, const std::vector<Variable>& in) {
                        return layer(context, in[0], {.relu = relu});
                      });
      check_gradients({Shape{3, 2, 4, channels}, Shape{3, 2, 4, channels}},
                      {&layer.gain, &layer.bias},
                      [&](Context& context, const std::vector<Variable>& in) {
                        return layer(context, in[0], {.relu = relu, .residual = &in[1]});
                      });
    }
  }
}

// Single channels and whole packs of 16 bytes; several chunks of rows and tiles of channels.
const std::vector<Shape> kShapes = {
    Shape{2, 37, 37, 3},  Shape{1, 41, 41, 5},  Shape{2, 17, 17, 16}, Shape{1, 21, 21, 20},
    Shape{1, 12, 12, 64}, Shape{1, 5, 13, 304}, Shape{1, 1, 7, 1}};

// The op under test; its statistics are in the device's memory.
OpUnderTest in_training(Layer& layer, bool relu, bool residual) {
  return [&layer, relu, residual](Context& context, const std::vector<Variable>& in) {
    layer.statistics.sum =
        Tensor::zeros(test_memory(context.stream.device()), {2, layer.gain.shape[0]}, DType::kF32,
                      MemoryClass::kParameters);
    return layer(context, in[0], {.relu = relu, .residual = residual ? &in[1] : nullptr});
  };
}

// ReLU's masked gradient is stored, which is one rounding more, and the residual adds it to dx.
TEST(BatchNorm2d, DevicesAgree) {
  for (const Shape& shape : kShapes) {
    const int64_t channels = shape[-1], rows = shape.elements() / channels;
    for (const bool relu : {false, true}) {
      SCOPED_TRACE(str(shape, relu ? " relu" : ""));
      Layer layer(channels, DType::kF32);
      check_devices({shape}, {&layer.gain, &layer.bias}, in_training(layer, relu, false),
                    {.terms = rows});
      check_devices({shape, shape}, {&layer.gain, &layer.bias}, in_training(layer, relu, true),
                    {.terms = rows});
    }
  }
}

// Two residual units: gradients of x and of parameters are added to those of the other unit.
TEST(BatchNorm2d, DevicesAgreeWhenGradientsAdd) {
  for (int64_t channels : {5, 16}) {
    Layer layer(channels, DType::kF32);
    const OpUnderTest unit = in_training(layer, true, true);
    check_devices({Shape{2, 5, 7, channels}}, {&layer.gain, &layer.bias},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return unit(context, {in[0], unit(context, {in[0], in[0]})});
                  },
                  {.terms = 140, .roundings = 16});
  }
}

TEST(BatchNorm2d, EveryDeviceObservesTheSame) {
  for (const Shape& shape : kShapes) {
    const int64_t channels = shape[-1];
    const Tensor x = shifted<float>(shape.elements() / channels, channels, 3);
    const Statistics expected = plain_statistics(x, channels);
    for_each_device([&](Device device) {
      TestContext test(device);
      Layer layer(channels, DType::kF32);
      layer.move_to(device);
      const Tensor ones =
          Tensor::empty(test_memory(), {2, channels}, DType::kF32, MemoryClass::kParameters);
      std::ranges::fill(ones.as<float>(), 1.0f);
      layer.statistics.sum = to_device(ones, device);
      layer(test.context, Variable(to_device(x, device)));
      const std::vector<double> observed = values_of(layer.statistics.sum);
      for (int64_t c = 0; c < channels; ++c) {
        // The observed statistics are added to ones. Tolerance: the bounds of check_statistics, and
        // one rounding of each sum.
        EXPECT_NEAR(observed[c], expected.observed[c], 260 * 0x1p-24 * 8);
        EXPECT_NEAR(observed[channels + c], expected.observed[channels + c],
                    266 * 0x1p-24 * expected.observed[channels + c]);
      }
    });
  }
}

// The mean of squares minus the square of the mean would lose every digit of the variance here:
// its f32 error is about 4096^2 * 2^-24 = 1.
TEST(BatchNorm2d, LargeMeanKeepsTheVariance) {
  const Tensor x = shifted<float>(2000, 16, 4096);
  const Statistics expected = plain_statistics(x, 16);
  for_each_device([&](Device device) {
    const TestContext test(device);
    const Tensor input = to_device(x, device);
    const Tensor mean = test.context.workspace({16}, DType::kF32);
    const Tensor rstd = test.context.workspace({16}, DType::kF32);
    on_device(test.stream, {}, [&](auto tag) {
      const int64_t size = kernels::batchnorm2d_workspace(tag, 2000, 16);
      const Tensor workspace = test.context.workspace({size}, DType::kF32);
      kernels::batchnorm2d_statistics(tag, input.data<float>(), mean.data<float>(),
                                      rstd.data<float>(), nullptr, 2000, 16,
                                      workspace.data<float>());
    });
    const std::vector<double> actual = values_of(rstd);
    for (int64_t c = 0; c < 16; ++c) {
      // The sum of 256 values near 2^12 is rounded to multiples of at most 2^-3, with varying sign,
      // so the mean's error is far below its bound of 0.06. A tolerance of 0.01 is generous.
      EXPECT_NEAR(actual[c] / expected.rstd[c], 1, 0.01);
    }
  });
}

// A residual block: the gradient of x first comes from the residual, and then the convolution adds
// to it. The gradient of the middle has two users.
TEST(BatchNorm2d, GradientsOfAResidualBlock) {
  Layer layer(4, DType::kF64), second(4, DType::kF64);
  second.gain.name = "gain_2";
  second.bias.name = "bias_2";
  Parameter weight{.name = "w", .shape = {4, 3, 3, 4}};
  check_gradients({Shape{2, 3, 5, 4}},
                  {&weight, &layer.gain, &layer.bias, &second.gain, &second.bias},
                  [&](Context& context, const std::vector<Variable>& in) {
                    const Variable middle = layer(context, in[0], {.relu = true});
                    const Variable inner = conv2d(context, middle, weight, 1, 1);
                    return second(context, inner, {.relu = true, .residual = &middle});
                  });
}

// When others hold the incoming gradient, it is not overwritten; the result is the same as when the
// op may overwrite it.
TEST(BatchNorm2d, SharedGradientIsNotOverwritten) {
  for (const bool with_residual : {false, true}) {
    const auto run = [&](bool shared) {
      Layer layer(6, DType::kF32);
      TestContext test;
      const Variable x = Variable::leaf(random_tensor({2, 5, 5, 6}, DType::kF32, 1));
      const Variable residual = Variable::leaf(random_tensor({2, 5, 5, 6}, DType::kF32, 2));
      const Variable y =
          layer(test.context, x, {.relu = true, .residual = with_residual ? &residual : nullptr});
      Tensor dy = random_tensor(y.shape(), DType::kF32, 3);
      const std::vector<double> before = values_of(dy);
      const Tensor other_owner = shared ? dy : Tensor();
      test.tape.backward(test.context, y, std::move(dy));
      if (shared) {
        EXPECT_EQ(values_of(other_owner), before);
      }
      return std::array{values_of(x.slot()->grad), values_of(layer.gain.grad),
                        values_of(layer.bias.grad),
                        with_residual ? values_of(residual.slot()->grad) : std::vector<double>()};
    };
    EXPECT_EQ(run(true), run(false));
  }
}

// Fused steps give the bits of separate steps.
TEST(BatchNorm2d, FusedStepsEqualSeparateOnes) {
  Layer layer(17, DType::kF32);
  TestContext test;
  const Variable x(random_tensor({4, 9, 9, 17}, DType::kF32, 1));
  const Variable residual(random_tensor({4, 9, 9, 17}, DType::kF32, 2));
  const Variable normalized = layer(test.context, x);
  const Variable relu = layer(test.context, x, {.relu = true});
  const Variable sum = layer(test.context, x, {.residual = &residual});
  const Variable both = layer(test.context, x, {.relu = true, .residual = &residual});
  for (int64_t i = 0; i < x.elements(); ++i) {
    const float plain = normalized.data<float>()[i];
    const float added = plain + residual.data<float>()[i];
    ASSERT_EQ(relu.data<float>()[i], std::max(plain, 0.0f));
    ASSERT_EQ(sum.data<float>()[i], added);
    ASSERT_EQ(both.data<float>()[i], std::max(added, 0.0f));
  }
}

TEST(BatchNorm2d, InferenceUsesRunningStatistics) {
  Layer layer(5, DType::kF32);
  for (int64_t c = 0; c < 5; ++c) {
    layer.statistics.running.data<float>()[c] = 0.5f * static_cast<float>(c);
    layer.statistics.running.data<float>()[5 + c] = 1.0f + static_cast<float>(c);
  }
  const Tensor x = random_tensor({2, 3, 3, 5}, DType::kF32, 1);
  const Tensor gain = layer.gain.value, bias = layer.bias.value;
  const Tensor running = layer.statistics.running;
  for_each_device([&](Device device) {
    TestContext test(device);
    test.context.training = false;
    test.context.tape = nullptr;
    layer.gain.value = to_device(gain, device);
    layer.bias.value = to_device(bias, device);
    layer.statistics.running = to_device(running, device);
    const std::vector<double> y =
        values_of(layer(test.context, Variable(to_device(x, device))).value());
    for (int64_t i = 0; i < x.elements(); ++i) {
      const int64_t c = i % 5;
      const double normal = (x.data<float>()[i] - 0.5 * static_cast<double>(c)) /
                            std::sqrt(1.0 + static_cast<double>(c) + 1e-5);
      const double scaled = gain.data<float>()[c] * normal, shift = bias.data<float>()[c];
      // Five roundings: of rstd, the factor, the difference, the product and the sum.
      ASSERT_NEAR(y[i], scaled + shift, 5 * 0x1p-24 * (std::abs(scaled) + std::abs(shift) + 3));
    }
  });
  EXPECT_EQ(values_of(layer.statistics.sum), std::vector<double>(10, 0.0));
}

TEST(BatchNorm2d, RecomputationObservesNothingAndGivesTheSameBits) {
  Layer layer(8, DType::kF32);
  TestContext test;
  const Variable x(random_tensor({2, 6, 6, 8}, DType::kF32, 1));
  const Variable first = layer(test.context, x);
  std::vector<double> observed = values_of(layer.statistics.sum);
  test.context.recomputing = true;
  const Variable again = layer(test.context, x);
  EXPECT_EQ(values_of(again.value()), values_of(first.value()));
  EXPECT_EQ(values_of(layer.statistics.sum), observed);
  test.context.recomputing = false;
  layer(test.context, x);
  std::ranges::for_each(observed, [](double& sum) { sum *= 2; });
  EXPECT_EQ(values_of(layer.statistics.sum), observed);
}

TEST(BatchNorm2d, SameBitsForEveryNumberOfThreads) {
  const int before = cpu_threads();
  const auto run = [](int threads) {
    set_cpu_threads(threads);
    Layer layer(16, DType::kF32);
    TestContext test;
    const Variable x = Variable::leaf(random_tensor({8, 17, 17, 16}, DType::kF32, 1));
    const Variable y = layer(test.context, x, {.relu = true});
    test.tape.backward(test.context, y, random_tensor(y.shape(), DType::kF32, 3));
    return std::array{values_of(y.value()), values_of(x.slot()->grad), values_of(layer.gain.grad),
                      values_of(layer.bias.grad), values_of(layer.statistics.sum)};
  };
  const auto one = run(1);
  for (int threads : {2, 3, 7}) {
    EXPECT_EQ(run(threads), one) << threads;
  }
  set_cpu_threads(before);
}

// A ReLU that turned NaN into zero would hide it from the loss.
TEST(BatchNorm2d, NanStaysVisible) {
  const Tensor x = random_tensor({2, 2, 2, 2}, DType::kF32, 1);
  x.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  for_each_device([&](Device device) {
    TestContext test(device);
    Layer layer(2, DType::kF32);
    layer.move_to(device);
    const OpUnderTest op = in_training(layer, true, false);
    const auto y = values_of(op(test.context, {Variable(to_device(x, device))}).value());
    EXPECT_TRUE(std::isnan(y[0]) && !std::isnan(y[1]));
  });
}

// Where all inputs are equal and the bias is 0, ReLU's input is 0, and its gradient is 0 as well.
TEST(BatchNorm2d, ReluPassesNoGradientAtZero) {
  const Shape shape{2, 3, 3, 16};
  for_each_device([&](Device device) {
    Layer layer(16, DType::kF32);
    layer.bias.value = random_tensor({16}, DType::kF32, 1, 0.0);
    layer.move_to(device);
    TestContext test(device);
    const Variable x = Variable::leaf(to_device(random_tensor(shape, DType::kF32, 1, 0.0), device));
    const Variable y = in_training(layer, true, false)(test.context, {x});
    test.tape.backward(test.context, y, to_device(random_tensor(shape, DType::kF32, 2), device));
    EXPECT_EQ(values_of(x.slot()->grad), std::vector<double>(2 * 3 * 3 * 16));
  });
}

TEST(BatchNorm2d, ErrorsNameTheLayer) {
  Layer layer(3, DType::kF32);
  layer.gain.name = "stem.bn.gain";
  TestContext test;
  const auto message = [&](Shape shape) {
    return message_of([&] { layer(test.context, Variable(random_tensor(shape, DType::kF32, 1))); });
  };
  EXPECT_NE(message({2, 2, 2, 4}).find("stem.bn.gain"), std::string::npos);
  EXPECT_NE(message({1, 1, 1, 3}).find("one value per channel"), std::string::npos);
  test.context.training = false;
  EXPECT_NE(message({2, 2, 2, 3}).find("no gradient"), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing

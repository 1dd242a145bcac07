#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "layers/add/add.h"
#include "layers/pool2d/pool2d.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

// The largest value and its pixel by plain loops; of equal values, the first.
template <class T>
void plain_max_pool(const Pool2dShape& s, const T* x, std::vector<T>& y,
                    std::vector<int32_t>& winner) {
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (int64_t c = 0; c < s.channels; ++c) {
          T best = -std::numeric_limits<T>::infinity();
          int64_t place = -1;
          for (int64_t kh = 0; kh < s.kernel; ++kh) {
            for (int64_t kw = 0; kw < s.kernel; ++kw) {
              const int64_t ih = oh * s.stride - s.padding + kh;
              const int64_t iw = ow * s.stride - s.padding + kw;
              if (ih < 0 || ih >= s.height || iw < 0 || iw >= s.width) {
                continue;
              }
              const T value = x[((n * s.height + ih) * s.width + iw) * s.channels + c];
              if (place < 0 || value > best) {
                best = value;
                place = ih * s.width + iw;
              }
            }
          }
          y.push_back(best);
          winner.push_back(static_cast<int32_t>(place));
        }
      }
    }
  }
}

TEST(MaxPool2dKernels, MatchPlainLoops) {
  for (int64_t channels : {1, 3, 17, 64}) {
    for (int64_t kernel : {1, 2, 3, 5}) {
      for (int64_t stride : {1, 2, 3}) {
        for (int64_t padding = 0; padding <= std::min(kernel / 2, int64_t{2}); ++padding) {
          const Pool2dShape s{.batch = 3,
                              .height = 7,
                              .width = 10,
                              .channels = channels,
                              .kernel = kernel,
                              .stride = stride,
                              .padding = padding};
          const Tensor x = random_tensor({3, 7, 10, channels}, DType::kF32, 1);
          // All values are negative, so that padding with zero would win; many of them are equal.
          for (float& value : x.as<float>()) {
            value = -1.0f - std::round(std::abs(value) * 2);
          }
          std::vector<float> expected;
          std::vector<int32_t> winner;
          plain_max_pool(s, x.data<float>(), expected, winner);
          std::vector<float> y(expected.size());
          std::vector<int32_t> actual_winner(expected.size());
          kernels::max_pool2d_forward(Cpu{}, s, x.data<float>(), y.data(), actual_winner.data());
          ASSERT_EQ(y, expected);
          ASSERT_EQ(actual_winner, winner);
        }
      }
    }
  }
}

TEST(MaxPool2d, GradientsMatchFiniteDifferences) {
  for (int64_t stride : {1, 2}) {
    check_gradients({Shape{2, 5, 6, 3}}, {},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return max_pool2d(context, in[0], 3, stride, 1);
                    });
  }
}

// Windows that overlap, touch, leave gaps, and reach into the padding. In 16 bits many values are
// equal, and the first must win on every device.
TEST(MaxPool2d, DevicesAgree) {
  for (int64_t channels : {1, 3, 8, 20}) {
    for (const auto& window : std::vector<std::array<int64_t, 3>>{
             {1, 1, 0}, {2, 2, 0}, {2, 3, 1}, {3, 1, 1}, {3, 2, 1}, {5, 2, 2}}) {
      const int64_t kernel = window[0], stride = window[1], padding = window[2];
      SCOPED_TRACE(str(channels, " channels, kernel ", kernel, ", stride ", stride));
      check_devices({Shape{3, 7, 10, channels}}, {},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return max_pool2d(context, in[0], kernel, stride, padding);
                    },
                    {.terms = 25});
    }
  }
}

TEST(MaxPool2d, DevicesAgreeWhenGradientsAdd) {
  check_devices({Shape{2, 6, 5, 8}}, {},
                [](Context& context, const std::vector<Variable>& in) {
                  return add(context, max_pool2d(context, in[0], 3, 1, 1), in[0]);
                },
                {.terms = 10, .roundings = 8});
}

// The largest value and the first pixel that has it, exactly.
TEST(MaxPool2dKernels, EveryDeviceHasTheSameWinners) {
  const Pool2dShape s{
      .batch = 2, .height = 7, .width = 10, .channels = 8, .kernel = 3, .stride = 2, .padding = 1};
  const Tensor x = random_tensor({2, 7, 10, 8}, DType::kF32, 1);
  for (float& value : x.as<float>()) {
    value = -1.0f - std::round(std::abs(value) * 2);
  }
  std::vector<float> expected;
  std::vector<int32_t> winner;
  plain_max_pool(s, x.data<float>(), expected, winner);
  for_each_device([&](Device device) {
    const TestContext test(device);
    const Tensor input = to_device(x, device);
    const int64_t n = static_cast<int64_t>(expected.size());
    const Tensor y = test.context.activation({n}, DType::kF32);
    const Tensor places = test.context.activation({n}, DType::kI32);
    on_device(test.stream, {}, [&](auto tag) {
      kernels::max_pool2d_forward(tag, s, input.data<float>(), y.data<float>(),
                                  places.data<int32_t>());
    });
    EXPECT_TRUE(std::ranges::equal(to_host(y).as<float>(), expected));
    EXPECT_TRUE(std::ranges::equal(to_host(places).as<int32_t>(), winner));
  });
}

// x has two users: the second gradient is added.
TEST(MaxPool2d, SecondUseOfTheInputAdds) {
  TestContext test;
  const Variable x = Variable::leaf(random_tensor({2, 4, 4, 3}, DType::kF64, 1));
  x.slot()->grad = random_tensor({2, 4, 4, 3}, DType::kF64, 2);
  const std::vector<double> before = values_of(x.slot()->grad);
  const Variable y = max_pool2d(test.context, x, 2, 2);
  test.tape.backward(test.context, y, 1.0);
  const std::vector<double> after = values_of(x.slot()->grad);
  double added = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_NEAR(after[i] - before[i], std::round(after[i] - before[i]), 1e-12);
    added += after[i] - before[i];
  }
  EXPECT_NEAR(added, static_cast<double>(y.elements()), 1e-10);
}

TEST(MaxPool2d, NanWins) {
  for_each_device([](Device device) {
    TestContext test(device);
    for (int64_t place = 0; place < 4; ++place) {
      const Tensor with_nan = random_tensor({1, 2, 2, 1}, DType::kF32, 1);
      with_nan.data<float>()[place] = std::numeric_limits<float>::quiet_NaN();
      const Variable x(to_device(with_nan, device));
      EXPECT_TRUE(std::isnan(values_of(max_pool2d(test.context, x, 2, 2).value())[0]));
    }
  });
}

TEST(MaxPool2d, PaddingThatLeavesAWindowEmptyIsAnError) {
  TestContext test;
  const Variable x(random_tensor({1, 4, 4, 1}, DType::kF32, 1));
  EXPECT_THROW(max_pool2d(test.context, x, 2, 2, 2), Error);
  EXPECT_THROW(max_pool2d(test.context, x, 5, 1, 0), Error);
}

TEST(GlobalAveragePool, IsTheMeanOverPixels) {
  TestContext test;
  const Variable x(random_tensor({3, 5, 7, 19}, DType::kF32, 1));
  const Variable y = global_average_pool(test.context, x);
  ASSERT_EQ(y.shape(), (Shape{3, 19}));
  for (int64_t n = 0; n < 3; ++n) {
    for (int64_t c = 0; c < 19; ++c) {
      double sum = 0, magnitude = 0;
      for (int64_t pixel = 0; pixel < 35; ++pixel) {
        const double value = x.data<float>()[(n * 35 + pixel) * 19 + c];
        sum += value;
        magnitude += std::abs(value);
      }
      // 35 additions and a division, each within one unit roundoff of the partial sums.
      EXPECT_NEAR(y.data<float>()[n * 19 + c], sum / 35, 36 * 0x1p-24 * magnitude / 35);
    }
  }
}

TEST(GlobalAveragePool, GradientsMatchFiniteDifferences) {
  check_gradients({Shape{2, 3, 4, 5}}, {}, [](Context& context, const std::vector<Variable>& in) {
    return global_average_pool(context, in[0]);
  });
}

// More pixels than a block has rows of threads, and several tiles of channels.
TEST(GlobalAveragePool, DevicesAgree) {
  for (const Shape& shape : {Shape{3, 5, 7, 19}, Shape{2, 9, 17, 16}, Shape{2, 3, 3, 304},
                             Shape{5, 1, 1, 8}, Shape{1, 20, 20, 1}}) {
    SCOPED_TRACE(str(shape));
    check_devices({shape}, {},
                  [](Context& context, const std::vector<Variable>& in) {
                    return global_average_pool(context, in[0]);
                  },
                  {.terms = shape[1] * shape[2]});
  }
}

TEST(GlobalAveragePool, DevicesAgreeWhenGradientsAdd) {
  check_devices({Shape{2, 3, 3, 8}}, {},
                [](Context& context, const std::vector<Variable>& in) {
                  return add(context, global_average_pool(context, in[0]),
                             global_average_pool(context, in[0]));
                },
                {.terms = 10, .roundings = 8});
}

TEST(Pool2d, SameBitsForEveryNumberOfThreads) {
  const int before = cpu_threads();
  const auto run = [](int threads) {
    set_cpu_threads(threads);
    TestContext test;
    const Variable x = Variable::leaf(random_tensor({8, 16, 16, 16}, DType::kF32, 1));
    const Variable y = global_average_pool(test.context, max_pool2d(test.context, x, 3, 1, 1));
    test.tape.backward(test.context, y, random_tensor(y.shape(), DType::kF32, 2));
    return std::array{values_of(y.value()), values_of(x.slot()->grad)};
  };
  const auto one = run(1);
  EXPECT_EQ(run(2), one);
  EXPECT_EQ(run(5), one);
  set_cpu_threads(before);
}

}  // namespace
}  // namespace tandem::testing

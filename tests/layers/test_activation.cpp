#include <cmath>

#include "layers/activation/activation.h"
#include "layers/add/add.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

using Activation = Variable (*)(Context&, const Variable&);

OpUnderTest alone(Activation f) {
  return [f](Context& context, const std::vector<Variable>& in) { return f(context, in[0]); };
}

TEST(Activation, GradientsMatchFiniteDifferences) {
  for (Activation f : {relu, gelu, silu, swiglu}) {
    check_gradients({Shape{3, 4, 10}}, {}, alone(f));
  }
}

// Large arguments, where gates saturate.
TEST(Activation, GradientsOfLargeArguments) {
  for (Activation f : {gelu, silu, swiglu}) {
    check_gradients({Shape{5, 6}}, {}, alone(f), 10.0);
  }
}

// x is used twice: the second op to be differentiated adds to its gradient. Both addends of the sum
// share dy, so neither op may overwrite it.
TEST(Activation, GradientsAccumulate) {
  for (Activation f : {relu, gelu, silu}) {
    check_gradients({Shape{4, 8}}, {}, [f](Context& context, const std::vector<Variable>& in) {
      return add(context, f(context, in[0]), f(context, in[0]));
    });
  }
  check_gradients({Shape{4, 8}}, {}, [](Context& context, const std::vector<Variable>& in) {
    return add(context, swiglu(context, in[0]), swiglu(context, in[0]));
  });
}

// Whole packs of 16 bytes, a tail, and several blocks. An exponential has an error of at most 4
// units of 2^-24, and a slope takes it three times.
TEST(Activation, DevicesAgree) {
  for (Activation f : {relu, gelu, silu}) {
    check_devices({Shape{3, 701}}, {}, alone(f), {.terms = 16});
  }
  for (const Shape& shape : {Shape{3, 4, 10}, Shape{9, 32}, Shape{2, 1088}}) {
    check_devices({shape}, {}, alone(swiglu), {.terms = 16});
  }
}

// The sum adds four roundings: two values, two gradients.
TEST(Activation, DevicesAgreeWhenGradientsAdd) {
  for (Activation f : {relu, gelu, silu, swiglu}) {
    check_devices({Shape{3, 16}}, {},
                  [f](Context& context, const std::vector<Variable>& in) {
                    return add(context, f(context, in[0]), f(context, in[0]));
                  },
                  {.terms = 16, .roundings = 8});
  }
}

struct Values {
  std::vector<double> value, slope;
};

// f(x) and its derivative in f32 on a device.
Values values_and_slopes(Device device, Activation f, const Tensor& x) {
  TestContext test(device);
  const Variable leaf = Variable::leaf(to_device(x, device));
  const Variable y = f(test.context, leaf);
  Values values{.value = values_of(y.value()), .slope = {}};
  test.tape.backward(test.context, y, 1.0);
  values.slope = values_of(leaf.slot()->grad);
  return values;
}

// Arguments from -20 to 20. With u = 2^-24, a gate sigmoid(z) has a relative error of
// (12 + 2.5 |z|) u on a GPU (src/kernels/sigmoid.cuh), and less on the CPU, whose exponential has
// 3.4 u at most; there 1 - sigmoid(z) has an error of 4 u of 1. In GELU z = c x (1 + a x^2) has 7
// roundings, which change the gate by 7 |z| u of it. A value has one rounding more. A slope is
// gate (1 + w), where w = x (1 - gate) dz/dx has twice the gate's error and 8 roundings more, and
// from 1 - gate on the CPU another 4 u |x dz/dx|. Gates below 2^-100 may have any error.
TEST(Activation, SinglePrecisionValues) {
  const int64_t n = 4001;
  Tensor x = Tensor::empty(test_memory(), {n}, DType::kF32, MemoryClass::kData);
  for (int64_t i = 0; i < n; ++i) {
    x.data<float>()[i] = static_cast<float>(i - 2000) * 0.01f;
  }
  for_each_device([&](Device device) {
    const Values g = values_and_slopes(device, gelu, x), s = values_and_slopes(device, silu, x);
    const Values r = values_and_slopes(device, relu, x);
    const auto check = [](double v, double z, double dz, double roundings, double value,
                          double slope) {
      const double gate = 1 / (1 + std::exp(-z)), w = v / (1 + std::exp(z)) * dz;
      const double relative = (12 + (2.5 + roundings) * std::abs(z)) * 0x1p-24;
      const double tiny = 0x1p-100 * (1 + std::abs(v * dz));
      EXPECT_NEAR(value, v * gate, std::abs(v * gate) * (relative + 0x1p-24) + tiny) << v;
      EXPECT_NEAR(slope, gate * (1 + w),
                  gate * ((1 + std::abs(w)) * (3 * relative + 8 * 0x1p-24) +
                          4 * 0x1p-24 * std::abs(v * dz)) +
                      tiny)
          << v;
    };
    const double c = 2 * std::sqrt(2 / M_PI), a = 0.044715;
    for (int64_t i = 0; i < n; ++i) {
      const double v = x.data<float>()[i];
      check(v, c * (v + a * v * v * v), c * (1 + 3 * a * v * v), 7, g.value[i], g.slope[i]);
      check(v, v, 1, 0, s.value[i], s.slope[i]);
      EXPECT_EQ(r.value[i], std::max(v, 0.0));
    }
  });
}

// A closed gate lets nothing through. An open one is 1 up to the 2 units of 2^-24 of a reciprocal.
TEST(Activation, GatesSaturate) {
  const std::vector<float> large = {-1e30f, -1000, -200, 200, 1000, 1e30f};
  Tensor x = Tensor::empty(test_memory(), {6}, DType::kF32, MemoryClass::kData);
  std::ranges::copy(large, x.data<float>());
  for_each_device([&](Device device) {
    TestContext test(device);
    for (Activation f : {gelu, silu}) {
      const std::vector<double> y =
          values_of(f(test.context, Variable(to_device(x, device))).value());
      for (size_t i = 0; i < large.size(); ++i) {
        EXPECT_NEAR(y[i], std::max(large[i], 0.0f), std::max(large[i], 0.0f) * 0x1p-23) << large[i];
      }
    }
  });
}

TEST(Activation, NotANumberStays) {
  Tensor x = random_tensor({40}, DType::kF32, 1);
  x.data<float>()[17] = NAN;
  for_each_device([&](Device device) {
    TestContext test(device);
    for (Activation f : {relu, gelu, silu}) {
      const std::vector<double> y =
          values_of(f(test.context, Variable(to_device(x, device))).value());
      for (size_t i = 0; i < y.size(); ++i) {
        EXPECT_EQ(std::isnan(y[i]), i == 17) << i;
      }
    }
  });
}

TEST(Activation, SwigluTakesGateFirst) {
  Tensor x = Tensor::empty(test_memory(), {1, 4}, DType::kF64, MemoryClass::kData);
  const double values[] = {2, -1, 5, 7};
  std::copy_n(values, 4, x.data<double>());
  TestContext test;
  const Variable y = swiglu(test.context, Variable(x));
  ASSERT_EQ(y.shape(), (Shape{1, 2}));
  EXPECT_DOUBLE_EQ(y.data<double>()[0], 2 / (1 + std::exp(-2.0)) * 5);
  EXPECT_DOUBLE_EQ(y.data<double>()[1], -1 / (1 + std::exp(1.0)) * 7);
}

TEST(Activation, SwigluNeedsTwoHalves) {
  TestContext test;
  EXPECT_THROW(swiglu(test.context, Variable(random_tensor({2, 3}, DType::kF32, 1))), Error);
}

}  // namespace
}  // namespace tandem::testing

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

// Whole packs of 16 bytes, a tail, and several blocks. math::exp has an error of at most 4 units of
// 2^-24, and a slope takes it three times.
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

// f32 uses math::exp, whose relative error is 2e-7; a few roundings more make 1e-6 relative to the
// larger of 1 and |x|.
TEST(Activation, SinglePrecisionValues) {
  const int64_t n = 4001;
  Tensor x = Tensor::empty(test_memory(), {n}, DType::kF32, MemoryClass::kData);
  for (int64_t i = 0; i < n; ++i) {
    x.data<float>()[i] = static_cast<float>(i - 2000) * 0.01f;
  }
  TestContext test;
  const Variable g = gelu(test.context, Variable(x)), s = silu(test.context, Variable(x));
  const Variable r = relu(test.context, Variable(x));
  for (int64_t i = 0; i < n; ++i) {
    const double v = x.data<float>()[i], tolerance = 1e-6 * std::max(1.0, std::abs(v));
    const double u = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
    EXPECT_NEAR(g.data<float>()[i], 0.5 * v * (1 + std::tanh(u)), tolerance) << v;
    EXPECT_NEAR(s.data<float>()[i], v / (1 + std::exp(-v)), tolerance) << v;
    EXPECT_EQ(r.data<float>()[i], std::max(v, 0.0));
  }
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

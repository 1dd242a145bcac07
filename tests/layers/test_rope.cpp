#include <cmath>
#include <numbers>

#include "layers/add/add.h"
#include "layers/rope/rope.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

constexpr HeadLayout kLayout{.heads = 3, .kv_heads = 1, .width = 6};
// Its three pairs make 15.9, 2.0 and 0.25 turns: one keeps its frequency, one is in between, and
// one is divided.
constexpr RopeFrequencies kLlama3{.theta = 500, .factor = 8, .original_context = 100};

TEST(Rope, GradientsMatchFiniteDifferences) {
  check_gradients(
      {Shape{2, 20, kLayout.row()}}, {}, [](Context& context, const std::vector<Variable>& in) {
        return add(context, in[0], rope(from_position(context, 2, 20, 3), in[0], kLayout));
      });
  check_gradients({Shape{2, 20, kLayout.row()}}, {},
                  [](Context& context, const std::vector<Variable>& in) {
                    return rope(from_position(context, 2, 20, 3), in[0], kLayout, kLlama3);
                  });
}

// Head halves of 3 elements, and of whole 16-byte packs; more samples than share a block.
TEST(Rope, DevicesAgree) {
  check_devices(
      {Shape{2, 20, kLayout.row()}}, {}, [](Context& context, const std::vector<Variable>& in) {
        return add(context, in[0], rope(from_position(context, 2, 20, 3), in[0], kLayout));
      });
  const HeadLayout packed{.heads = 2, .kv_heads = 1, .width = 16};
  check_devices({Shape{17, 3, packed.row()}}, {},
                [&](Context& context, const std::vector<Variable>& in) {
                  return rope(context, in[0], packed);
                });
  check_devices({Shape{2, 20, kLayout.row()}}, {},
                [](Context& context, const std::vector<Variable>& in) {
                  return rope(from_position(context, 2, 20, 3), in[0], kLayout, kLlama3);
                });
}

// A frequency of turns / 100 makes so many turns in a context of 200 pi.
TEST(Rope, FrequenciesAreScaled) {
  const auto of = [](const RopeFrequencies& frequencies, double turns) {
    return frequencies.scaled(turns / 100);
  };
  const RopeFrequencies llama3{.factor = 4,
                               .original_context = 200 * std::numbers::pi,
                               .low_freq_factor = 2,
                               .high_freq_factor = 8};
  EXPECT_DOUBLE_EQ(of(llama3, 16), 0.16);
  EXPECT_DOUBLE_EQ(of(llama3, 8), 0.08);
  EXPECT_DOUBLE_EQ(of(llama3, 5), 0.05 * (0.5 / 4 + 0.5));
  EXPECT_DOUBLE_EQ(of(llama3, 2), 0.02 / 4);
  EXPECT_DOUBLE_EQ(of(llama3, 0.1), 0.001 / 4);
  EXPECT_DOUBLE_EQ(of({.factor = 4}, 16), 0.16 / 4);
  EXPECT_EQ(RopeFrequencies{}.scaled(0.1), 0.1);
}

TEST(Rope, TurnsByItsFrequencies) {
  const int64_t length = 4, first = 80, row = kLayout.row(), half = kLayout.width / 2;
  const Tensor x = random_tensor({1, length, row}, DType::kF32, 4);
  for_each_device([&](Device device) {
    TestContext test(device);
    const std::vector<double> y = values_of(rope(from_position(test.context, 1, length, first),
                                                 Variable(to_device(x, device)), kLayout, kLlama3)
                                                .value());
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double plain = std::pow(500.0, -static_cast<double>(i) / static_cast<double>(half));
        const double angle = static_cast<double>(first + t) * kLlama3.scaled(plain);
        const double a = x.data<float>()[t * row + i], b = x.data<float>()[t * row + half + i];
        const double tolerance = 5e-7 * std::hypot(a, b);
        EXPECT_NEAR(y[t * row + i], a * std::cos(angle) - b * std::sin(angle), tolerance);
        EXPECT_NEAR(y[t * row + half + i], b * std::cos(angle) + a * std::sin(angle), tolerance);
      }
    }
  });
}

// An f32 angle of 100,000 would be off by 4e-3.
TEST(Rope, LargePositions) {
  const int64_t length = 4, first = 99996, row = kLayout.row(), half = kLayout.width / 2;
  const Tensor x = random_tensor({1, length, row}, DType::kF32, 4);
  for_each_device([&](Device device) {
    TestContext test(device);
    const std::vector<double> y = values_of(
        rope(from_position(test.context, 1, length, first), Variable(to_device(x, device)), kLayout)
            .value());
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(first + t) *
                             std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        const double a = x.data<float>()[t * row + i], b = x.data<float>()[t * row + half + i];
        const double tolerance = 5e-7 * std::hypot(a, b);
        EXPECT_NEAR(y[t * row + i], a * std::cos(angle) - b * std::sin(angle), tolerance);
        EXPECT_NEAR(y[t * row + half + i], b * std::cos(angle) + a * std::sin(angle), tolerance);
      }
    }
  });
}

// Rotations go step by step from the last multiple of 16: at most 15 roundings of 2^-53.
TEST(Rope, ValuesAreRotationsByPosition) {
  const int64_t length = 40, first = 1000, row = kLayout.row(), half = kLayout.width / 2;
  const Tensor x = random_tensor({2, length, row}, DType::kF64, 4);
  TestContext test;
  const Variable y = rope(from_position(test.context, 2, length, first), Variable(x), kLayout);
  for (int64_t n = 0; n < 2 * length; ++n) {
    const double* from = x.data<double>() + n * row;
    const double* to = y.data<double>() + n * row;
    for (int64_t h = 0; h < kLayout.heads + kLayout.kv_heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(first + n % length) *
                             std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        const double a = from[h * 2 * half + i], b = from[h * 2 * half + half + i];
        EXPECT_NEAR(to[h * 2 * half + i], a * std::cos(angle) - b * std::sin(angle), 1e-12);
        EXPECT_NEAR(to[h * 2 * half + half + i], b * std::cos(angle) + a * std::sin(angle), 1e-12);
      }
    }
    for (int64_t j = (kLayout.heads + kLayout.kv_heads) * kLayout.width; j < row; ++j) {
      EXPECT_EQ(to[j], from[j]);  // values are not rotated
    }
  }
}

// Decoding may start at any position, and the same position must get the same bits.
TEST(Rope, OffsetEqualsTheWholeSequence) {
  const int64_t length = 50, row = kLayout.row();
  const Tensor x = random_tensor({1, length, row}, DType::kF32, 4);
  for_each_device([&](Device device) {
    TestContext test(device);
    const std::vector<double> whole =
        values_of(rope(test.context, Variable(to_device(x, device)), kLayout).value());
    for (int64_t first : {1, 16, 33, 49}) {
      const Tensor tail =
          x.slice(first * row, (length - first) * row).reshape({1, length - first, row});
      const Variable y = rope(from_position(test.context, 1, length - first, first),
                              Variable(to_device(tail, device)), kLayout);
      EXPECT_EQ(values_of(y.value()),
                std::vector<double>(whole.begin() + first * row, whole.end()));
    }
  });
}

TEST(Rope, InPlaceOnlyWhenNobodyLooks) {
  for_each_device([](Device device) {
    TestContext test(device);
    const Tensor x = to_device(random_tensor({1, 5, kLayout.row()}, DType::kF32, 4), device);
    const std::vector<double> before = values_of(x);
    const Variable y = rope(test.context, Variable(x), kLayout);
    EXPECT_EQ(values_of(x), before);
    Variable own(to_device(random_tensor({1, 5, kLayout.row()}, DType::kF32, 4), device));
    const float* memory = own.data<float>();
    const Variable turned = rope(test.context, std::move(own), kLayout);
    EXPECT_EQ(turned.data<float>(), memory);
    EXPECT_EQ(values_of(turned.value()), values_of(y.value()));
  });
}

TEST(Rope, OddHeadWidth) {
  TestContext test;
  const HeadLayout odd{.heads = 1, .kv_heads = 1, .width = 3};
  EXPECT_THROW(rope(test.context, Variable(random_tensor({1, 2, 9}, DType::kF32, 1)), odd), Error);
}

}  // namespace
}  // namespace tandem::testing

#include <cmath>

#include "layers/add.h"
#include "layers/rope.h"
#include "tests/gradcheck.h"

namespace tandem::testing {
namespace {

constexpr HeadLayout kLayout{.heads = 3, .kv_heads = 1, .width = 6};

TEST(Rope, GradientsMatchFiniteDifferences) {
  check_gradients({Shape{2, 20, kLayout.row()}}, {},
                  [](Context& context, const std::vector<Variable>& in) {
                    return add(context, in[0], rope(context, in[0], kLayout, 3));
                  });
}

// Angles are turned step by step from the last multiple of 16: at most 15 roundings of 2^-53.
TEST(Rope, ValuesAreRotationsByPosition) {
  const int64_t length = 40, first = 1000, row = kLayout.row(), half = kLayout.width / 2;
  const Tensor x = random_tensor({2, length, row}, DType::kF64, 4);
  TestContext test;
  const Variable y = rope(test.context, Variable(x), kLayout, first);
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
      EXPECT_EQ(to[j], from[j]);  // values do not turn
    }
  }
}

// Decoding starts anywhere: the same position gets the same bits.
TEST(Rope, OffsetEqualsTheWholeSequence) {
  const int64_t length = 50, row = kLayout.row();
  const Tensor x = random_tensor({1, length, row}, DType::kF32, 4);
  TestContext test;
  const std::vector<double> whole = values_of(rope(test.context, Variable(x), kLayout).value());
  for (int64_t first : {1, 16, 33, 49}) {
    const Tensor tail =
        x.slice(first * row, (length - first) * row).reshape({1, length - first, row});
    EXPECT_EQ(values_of(rope(test.context, Variable(tail), kLayout, first).value()),
              std::vector<double>(whole.begin() + first * row, whole.end()));
  }
}

TEST(Rope, InPlaceOnlyWhenNobodyLooks) {
  TestContext test;
  const Tensor x = random_tensor({1, 5, kLayout.row()}, DType::kF32, 4);
  const std::vector<double> before = values_of(x);
  const Variable y = rope(test.context, Variable(x), kLayout);
  EXPECT_EQ(values_of(x), before);
  Variable own(random_tensor({1, 5, kLayout.row()}, DType::kF32, 4));
  const float* memory = own.data<float>();
  const Variable turned = rope(test.context, std::move(own), kLayout);
  EXPECT_EQ(turned.data<float>(), memory);
  EXPECT_EQ(values_of(turned.value()), values_of(y.value()));
}

TEST(Rope, OddHeadWidth) {
  TestContext test;
  const HeadLayout odd{.heads = 1, .kv_heads = 1, .width = 3};
  EXPECT_THROW(rope(test.context, Variable(random_tensor({1, 2, 9}, DType::kF32, 1)), odd), Error);
}

}  // namespace
}  // namespace tandem::testing

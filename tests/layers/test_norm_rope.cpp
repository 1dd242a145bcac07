// Norms of heads and rotary positions in one pass.
#include "layers/norm/norm.h"
#include "layers/rope/norm_rope.h"
#include "tests/support/device_check.h"
#include "tests/support/gradcheck.h"

namespace tandem::testing {
namespace {

constexpr double kEpsilon = 0.1;
constexpr HeadLayout kLayout{.heads = 4, .kv_heads = 2, .width = 6};

Parameter gains_of(const HeadLayout& layout) {
  return {.name = "gain", .shape = {2 * layout.width}, .init = Initializer::constant(1)};
}

// rms_norm of all heads of queries and of all heads of keys, and then rope.
std::vector<double> in_two_passes(const Tensor& qkv, const std::vector<double>& gains,
                                  const HeadLayout& layout, int64_t first) {
  TestContext test;
  test.context.tape = nullptr;
  const int64_t rows = qkv.shape()[0] * qkv.shape()[1], width = layout.width;
  const Tensor all = rounded_to(qkv, DType::kF64);
  for (const bool keys : {false, true}) {
    Parameter gain{.name = "gain", .shape = {width}};
    gain.value = unwritten({width}, DType::kF64);
    std::copy_n(gains.begin() + (keys ? width : 0), width, gain.value.data<double>());
    const int64_t heads = keys ? layout.kv_heads : layout.heads;
    for (int64_t n = 0; n < rows; ++n) {
      const Tensor part =
          all.slice(n * layout.row() + (keys ? layout.heads * width : 0), heads * width);
      const std::vector<double> normal = values_of(
          rms_norm(test.context, Variable(part.reshape({heads, width})), gain, kEpsilon).value());
      std::ranges::copy(normal, part.data<double>());
    }
  }
  Context& there = from_position(test.context, qkv.shape()[0], qkv.shape()[1], first);
  return values_of(rope(there, Variable(all), layout).value());
}

// A handful of roundings of numbers of order one in f64.
TEST(NormRope, IsANormAndThenARotation) {
  Parameter gains = gains_of(kLayout);
  bind_parameters(std::vector{&gains}, DType::kF64, 7, 1);
  const Tensor qkv = random_tensor({2, 19, kLayout.row()}, DType::kF64, 3);
  const std::vector<double> expected = in_two_passes(qkv, values_of(gains.value), kLayout, 5);
  TestContext test;
  test.context.tape = nullptr;
  const std::vector<double> y = values_of(
      norm_rope(from_position(test.context, 2, 19, 5), Variable(qkv), gains, kEpsilon, kLayout)
          .value());
  ASSERT_EQ(y.size(), expected.size());
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(y[i], expected[i], 1e-14) << i;
  }
}

OpUnderTest normed(Parameter& gains, const HeadLayout& layout) {
  return [&gains, layout](Context& context, const std::vector<Variable>& in) {
    return norm_rope(context, in[0], gains, kEpsilon, layout);
  };
}

TEST(NormRope, GradientsMatchFiniteDifferences) {
  Parameter gains = gains_of(kLayout);
  check_gradients({Shape{2, 19, kLayout.row()}}, {&gains}, normed(gains, kLayout));
}

// More heads than warps of a block, more samples than share a block, odd halves, and widths that
// lanes divide and do not. Sums run over heads and rows.
TEST(NormRope, DevicesAgree) {
  for (const auto& [batch, layout] : {std::pair{int64_t{2}, kLayout},
                                      {17, {11, 1, 10}},
                                      {2, {2, 2, 64}},
                                      {1, {3, 1, 128}},
                                      {1, {1, 1, 80}}}) {
    SCOPED_TRACE(str("width ", layout.width));
    Parameter gains = gains_of(layout);
    check_devices({Shape{batch, 9, layout.row()}}, {&gains}, normed(gains, layout),
                  {.terms = batch * 9 * layout.heads + layout.width});
  }
}

// With positions as given, a token is what it is alone at its position.
TEST(NormRope, PositionsOfDocuments) {
  const Tensor qkv = random_tensor({2, 6, kLayout.row()}, DType::kF32, 3);
  const std::vector<int32_t> positions = {0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 3, 4};
  for_each_device([&](Device device) {
    Parameter gains = gains_of(kLayout);
    bind_parameters(std::vector{&gains}, DType::kF32, 7, 1);
    gains.value = to_device(gains.value, device);
    TestContext test(device);
    test.context.tape = nullptr;
    const auto turned = [&](const Tensor& x) {
      return values_of(
          norm_rope(test.context, Variable(to_device(x, device)), gains, kEpsilon, kLayout)
              .value());
    };
    test.context.positions = to_device(int_tensor({2, 6}, positions), device);
    const std::vector<double> all = turned(qkv);
    for (int64_t n = 0; n < 12; ++n) {
      const int64_t row = kLayout.row();
      from_position(test.context, 1, 1, positions[n]);
      const std::vector<double> alone = turned(qkv.slice(n * row, row).reshape({1, 1, row}));
      EXPECT_EQ(std::vector(all.begin() + n * row, all.begin() + (n + 1) * row), alone);
    }
  });
}

}  // namespace
}  // namespace tandem::testing

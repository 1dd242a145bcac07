// Attention where a GPU computes it on tensor cores: bf16 and fp16, heads that are 64, 96 or 128
// wide. Elsewhere these are tests of the other kernels.
#include <algorithm>
#include <cmath>

#include "layers/add/add.h"
#include "layers/attention/attention.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

// Roundings to 16 bits on the way to an element: of y: the probability and y itself; of a gradient:
// y, which delta is computed from; the gradient of the score; and the gradient itself. So the four
// of DeviceCheck suffice. f32 sums run over the width and over positions. Tensor cores that cut off
// instead of rounding err by at most 9 * 2^-24 of the largest term for each 8 terms, which is less
// than twice as much.
void check(const HeadLayout& layout, int64_t batch, int64_t length) {
  SCOPED_TRACE(str("width ", layout.width, ", length ", length));
  check_devices({Shape{batch, length, layout.row()}}, {},
                [&](Context& context, const std::vector<Variable>& in) {
                  return attention(context, in[0], layout);
                },
                {.terms = 2 * (length + layout.width), .dtypes = {DType::kBf16, DType::kFp16}});
}

// Lengths at the bounds of 8 and 16 rows of an instruction, of 32 and 64 streamed rows, and of the
// 64 and 128 rows of a block.
TEST(FlashAttention, LengthsAroundTheBoundsOfTiles) {
  for (int64_t width : {64, 96, 128}) {
    for (int64_t length : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129}) {
      check({.heads = 1, .kv_heads = 1, .width = width}, 1, length);
    }
  }
}

TEST(FlashAttention, BatchesAndGroups) {
  check({.heads = 3, .kv_heads = 1, .width = 64}, 3, 40);
  check({.heads = 6, .kv_heads = 3, .width = 96}, 1, 35);
  check({.heads = 5, .kv_heads = 5, .width = 128}, 1, 17);
  check({.heads = 2, .kv_heads = 1, .width = 128}, 1, 130);
}

TEST(FlashAttention, SeveralTiles) {
  for (int64_t width : {64, 96, 128}) {
    check({.heads = 1, .kv_heads = 1, .width = width}, 1, 255);
    check({.heads = 1, .kv_heads = 1, .width = width}, 1, 300);
  }
}

// The second gradient is added to the first.
TEST(FlashAttention, GradientsAccumulate) {
  const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = 64};
  check_devices({Shape{1, 70, layout.row()}}, {},
                [&](Context& context, const std::vector<Variable>& in) {
                  return add(context, attention(context, in[0], layout),
                             attention(context, in[0], layout));
                },
                {.terms = 4 * (70 + 64), .dtypes = {DType::kBf16, DType::kFp16}});
}

struct BothWays {
  std::vector<double> y, dqkv;
};

BothWays both_ways(Device device, const Tensor& qkv, const HeadLayout& layout) {
  const Variable x = Variable::leaf(to_device(qkv, device));
  TestContext test(device);
  const Variable y = attention(test.context, x, layout);
  test.tape.backward(test.context, y, 1.0);
  return {values_of(y.value()), values_of(x.slot()->grad)};
}

// Positions from 100 on change. No earlier position may change by a bit.
TEST(FlashAttention, TheFutureIsInvisible) {
  for_each_device([](Device device) {
    for (int64_t width : {64, 96, 128}) {
      const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = width};
      const Tensor qkv =
          rounded_to(random_tensor({1, 150, layout.row()}, DType::kF64, 3), DType::kBf16);
      const Tensor other = rounded_to(qkv, DType::kBf16);
      std::fill(other.data<Bf16>() + 100 * layout.row(), other.data<Bf16>() + other.elements(),
                Bf16(50.0f));
      std::vector<double> y = both_ways(device, qkv, layout).y;
      std::vector<double> z = both_ways(device, other, layout).y;
      EXPECT_NE(y, z);
      y.resize(100 * 2 * width);
      z.resize(100 * 2 * width);
      EXPECT_EQ(y, z);
    }
  });
}

// Scores of several thousand neither overflow nor lose the largest one.
TEST(FlashAttention, LargeScores) {
  const HeadLayout layout{.heads = 1, .kv_heads = 1, .width = 64};
  const Tensor qkv =
      rounded_to(random_tensor({1, 70, layout.row()}, DType::kF64, 3, 30.0), DType::kBf16);
  for_each_device([&](Device device) {
    const BothWays result = both_ways(device, qkv, layout);
    for (const std::vector<double>& values : {result.y, result.dqkv}) {
      EXPECT_TRUE(
          std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }));
    }
  });
}

// A key that is NaN makes NaN of its own query and all later ones, and of no earlier tile.
TEST(FlashAttention, NanStays) {
  const HeadLayout layout{.heads = 1, .kv_heads = 1, .width = 64};
  const Tensor qkv =
      rounded_to(random_tensor({1, 300, layout.row()}, DType::kF64, 3), DType::kBf16);
  constexpr int64_t kPosition = 270, kTile = 128;
  qkv.data<Bf16>()[kPosition * layout.row() + layout.width] = Bf16(std::nanf(""));
  for_each_device([&](Device device) {
    const BothWays result = both_ways(device, qkv, layout);
    for (int64_t i = 0; i < 300 * layout.width; ++i) {
      const int64_t position = i / layout.width;
      if (position < kPosition / kTile * kTile || position >= kPosition) {
        ASSERT_EQ(std::isnan(result.y[i]), position >= kPosition) << i;
      }
    }
    EXPECT_TRUE(std::isnan(result.dqkv[layout.width]));  // position 0 is a key of every query
  });
}

TEST(FlashAttention, TheSameBitsEveryTime) {
  const HeadLayout layout{.heads = 4, .kv_heads = 2, .width = 64};
  for_each_device([&](Device device) {
    for (DType dtype : {DType::kBf16, DType::kFp16}) {
      const Tensor qkv = rounded_to(random_tensor({2, 80, layout.row()}, DType::kF64, 3), dtype);
      const BothWays first = both_ways(device, qkv, layout),
                     second = both_ways(device, qkv, layout);
      EXPECT_EQ(first.y, second.y);
      EXPECT_EQ(first.dqkv, second.dqkv);
    }
  });
}

}  // namespace
}  // namespace tandem::testing

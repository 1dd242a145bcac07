// Attention where a GPU computes it on tensor cores: bf16 and fp16, heads that are 64, 96 or 128
// wide. Elsewhere these are tests of the other kernels. And attention to documents, by all kernels.
#include <algorithm>
#include <cmath>
#include <numeric>

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

// The queries of qkv, as a gradient of the result that differs from token to token.
Tensor gradient_of(const Tensor& qkv, const HeadLayout& layout) {
  const Shape& shape = qkv.shape();
  const int64_t width = layout.heads * layout.width, rows = shape[0] * shape[1];
  const std::vector<double> values = values_of(qkv);
  const Tensor dy = unwritten({shape[0], shape[1], width}, DType::kF64);
  for (int64_t n = 0; n < rows; ++n) {
    std::copy_n(values.begin() + n * layout.row(), width, dy.data<double>() + n * width);
  }
  return rounded_to(dy, qkv.dtype());
}

BothWays both_ways(Device device, const Tensor& qkv, const HeadLayout& layout,
                   const Tensor& positions = {}) {
  const Variable x = Variable::leaf(to_device(qkv, device));
  TestContext test(device);
  if (positions) {
    test.context.positions = to_device(positions, device);
  }
  const Variable y = attention(test.context, x, layout);
  test.tape.backward(test.context, y, to_device(gradient_of(qkv, layout), device));
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

using Lengths = std::vector<int64_t>;  // of the documents of a row, one after another

// Rows with 1, 2, 3 and 40 documents, with borders at, before and after the bounds of tiles. The
// last one ends in padding: documents of one token each.
constexpr int64_t kLength = 150;
std::vector<Lengths> packed_rows() {
  Lengths many(40, 3);
  std::fill_n(many.begin() + 25, 10, 5);
  many.back() = kLength - std::accumulate(many.begin(), many.end() - 1, int64_t{0});
  Lengths padded(23, 1);
  padded[0] = kLength - 22;
  return {{kLength},    {15, 135},    {127, 23}, {64, 86}, {16, 47, 87},
          {17, 48, 85}, {65, 63, 22}, {129, 21}, many,     padded};
}

Tensor positions_of(const std::vector<Lengths>& rows) {
  std::vector<int32_t> positions;
  for (const Lengths& row : rows) {
    for (const int64_t length : row) {
      positions.resize(positions.size() + length);
      std::iota(positions.end() - length, positions.end(), 0);
    }
  }
  return int_tensor({std::ssize(rows), kLength}, positions);
}

// On the CPU, each document of the rows as a batch of its own.
BothWays each_alone(const Tensor& qkv, const HeadLayout& layout, const std::vector<Lengths>& rows) {
  BothWays all;
  int64_t first = 0;
  for (const Lengths& row : rows) {
    for (const int64_t length : row) {
      const Tensor document = qkv.slice(first * layout.row(), length * layout.row());
      const BothWays one =
          both_ways(Device::kCpu, document.reshape({1, length, layout.row()}), layout);
      all.y.insert(all.y.end(), one.y.begin(), one.y.end());
      all.dqkv.insert(all.dqkv.end(), one.dqkv.begin(), one.dqkv.end());
      first += length;
    }
  }
  return all;
}

// `row`: the elements of a token.
void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double relative, int64_t row) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (const double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  for (int64_t i = 0; i < std::ssize(expected); ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i]), largest * relative)
        << "row " << i / row / kLength << ", token " << i / row % kLength << ", element "
        << i % row;
  }
}

// Expected: in f64, from the same rounded inputs. The tolerance is that of check().
TEST(DocumentsAttention, EachIsWhatItIsAlone) {
  const std::vector<Lengths> rows = packed_rows();
  const auto check_documents = [&](const HeadLayout& layout, DType dtype, double unit) {
    const Tensor qkv =
        rounded_to(random_tensor({std::ssize(rows), kLength, layout.row()}, DType::kF64, 3), dtype);
    const BothWays expected = each_alone(rounded_to(qkv, DType::kF64), layout, rows);
    const double relative = 4 * unit + static_cast<double>(2 * (kLength + layout.width)) * 0x1p-24;
    for_each_device([&](Device device) {
      SCOPED_TRACE(str(name_of(dtype), ", width ", layout.width, ", device ", name_of(device)));
      const BothWays packed = both_ways(device, qkv, layout, positions_of(rows));
      expect_near(packed.y, expected.y, relative, layout.heads * layout.width);
      expect_near(packed.dqkv, expected.dqkv, relative, layout.row());
      if (device == Device::kCpu) {
        EXPECT_EQ(packed.y, each_alone(qkv, layout, rows).y);
      }
    });
  };
  for (const HeadLayout& layout : {HeadLayout{2, 1, 17}, {1, 1, 64}, {1, 1, 128}}) {
    check_documents(layout, DType::kF32, 0x1p-24);
  }
  for (const HeadLayout& layout : {HeadLayout{2, 1, 64}, {2, 2, 96}, {2, 1, 128}}) {
    check_documents(layout, DType::kBf16, 0x1p-8);
    check_documents(layout, DType::kFp16, 0x1p-11);
  }
}

TEST(DocumentsAttention, OneOfARowChangesNoBit) {
  const Tensor positions = positions_of({2, {kLength}});
  for_each_device([&](Device device) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      for (const int64_t width : {64, 96, 128}) {
        const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = width};
        const Tensor qkv =
            rounded_to(random_tensor({2, kLength, layout.row()}, DType::kF64, 3), dtype);
        const BothWays some = both_ways(device, qkv, layout, positions),
                       none = both_ways(device, qkv, layout);
        EXPECT_EQ(some.y, none.y);
        EXPECT_EQ(some.dqkv, none.dqkv);
      }
    }
  });
}

// What the documents before and after one hold does not change a bit of it.
TEST(DocumentsAttention, OthersAreInvisible) {
  const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = 64};
  const Tensor positions = positions_of({{70, 15, 65}});
  for_each_device([&](Device device) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(name_of(dtype));
      const Tensor exact = random_tensor({1, kLength, layout.row()}, DType::kF64, 3);
      const auto middle = [&] {
        const BothWays all = both_ways(device, rounded_to(exact, dtype), layout, positions);
        return std::vector<double>(all.dqkv.begin() + 70 * layout.row(),
                                   all.dqkv.begin() + 85 * layout.row());
      };
      const std::vector<double> before = middle();
      for (const int64_t token : {69, 85}) {
        std::fill_n(exact.data<double>() + token * layout.row(), layout.row(), 3.0);
      }
      EXPECT_EQ(middle(), before);
    }
  });
}

}  // namespace
}  // namespace tandem::testing

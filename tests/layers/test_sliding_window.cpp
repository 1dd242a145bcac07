// Attention with a sliding window, by all kernels, alone and with documents.
#include <algorithm>
#include <cmath>

#include "layers/attention/attention.h"
#include "tests/support/device_check.h"
#include "tests/support/gradcheck.h"

namespace tandem::testing {
namespace {

constexpr int64_t kLength = 150;
// Below, at and above the bounds of tiles, and longer than the row.
constexpr int64_t kWindows[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 149, 150, 151};

OpUnderTest windowed(const HeadLayout& layout, int64_t window) {
  return [=](Context& context, const std::vector<Variable>& in) {
    return attention(context, in[0], layout, window);
  };
}

// Two rows: documents of 3, 70 and 77 tokens, and one of 150.
Tensor some_positions() {
  std::vector<int32_t> positions;
  for (const int32_t length : {3, 70, 77, 150}) {
    for (int32_t i = 0; i < length; ++i) {
      positions.push_back(i);
    }
  }
  return int_tensor({2, kLength}, positions);
}

struct BothWays {
  std::vector<double> y, dqkv;
  bool operator==(const BothWays&) const = default;
};

BothWays both_ways(Device device, DType dtype, const HeadLayout& layout, int64_t window,
                   const Tensor& positions = {}) {
  const Tensor qkv = rounded_to(random_tensor({2, kLength, layout.row()}, DType::kF64, 3), dtype);
  const Variable x = Variable::leaf(to_device(qkv, device));
  TestContext test(device);
  if (positions) {
    test.context.positions = to_device(positions, device);
  }
  const Variable y = attention(test.context, x, layout, window);
  const Tensor dy = rounded_to(random_tensor(y.shape(), DType::kF64, 8), dtype);
  test.tape.backward(test.context, y, to_device(dy, device));
  return {values_of(y.value()), values_of(x.slot()->grad)};
}

// The definition, of one head whose keys and values are its own: y of query t, element d.
double defined(const double* qkv, int64_t width, int64_t t, int64_t first_key, int64_t d) {
  const double* query = qkv + t * 3 * width;
  double total = 0, sum = 0;
  for (int64_t s = first_key; s <= t; ++s) {
    const double *key = qkv + s * 3 * width + width, *value = key + width;
    double score = 0;
    for (int64_t i = 0; i < width; ++i) {
      score += query[i] * key[i];
    }
    const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
    total += weight;
    sum += weight * value[d];
  }
  return sum / total;
}

// Sums of at most 150 terms of order one in f64.
TEST(SlidingWindow, MatchesTheDefinition) {
  const HeadLayout layout{.heads = 1, .kv_heads = 1, .width = 5};
  const Tensor qkv = random_tensor({2, kLength, layout.row()}, DType::kF64, 3);
  const std::vector<int32_t> positions = [] {
    const std::span<const int32_t> values = some_positions().as<int32_t>();
    return std::vector(values.begin(), values.end());
  }();
  for (const int64_t window : kWindows) {
    for (const bool documents : {false, true}) {
      const BothWays got = both_ways(Device::kCpu, DType::kF64, layout, window,
                                     documents ? some_positions() : Tensor{});
      for (int64_t n = 0; n < 2 * kLength; ++n) {
        const int64_t t = n % kLength, before = documents ? positions[n] : t;
        const int64_t first = t - std::min(before, window - 1);
        for (int64_t d = 0; d < layout.width; ++d) {
          ASSERT_NEAR(
              got.y[n * layout.width + d],
              defined(qkv.data<double>() + (n - t) * layout.row(), layout.width, t, first, d),
              1e-12)
              << "window " << window << ", token " << n;
        }
      }
    }
  }
}

TEST(SlidingWindow, GradientsMatchFiniteDifferences) {
  for (const int64_t window : {1, 2, 7, 33, 64}) {
    SCOPED_TRACE(window);
    const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = 4};
    check_gradients({Shape{2, 70, layout.row()}}, {}, windowed(layout, window));
  }
}

// As in test_attention.cpp and, for kernels on tensor cores, test_flash_attention.cpp.
TEST(SlidingWindow, Devices) {
  for (const int64_t window : {1, 17, 64, 65, 129, 149}) {
    for (const HeadLayout& layout : {HeadLayout{2, 1, 17}, {1, 1, 64}, {2, 2, 96}, {2, 1, 128}}) {
      SCOPED_TRACE(str("window ", window, ", width ", layout.width));
      check_devices({Shape{1, kLength, layout.row()}}, {}, windowed(layout, window),
                    {.terms = 2 * (kLength + layout.width)});
    }
  }
}

// A window is the kernels' bound of documents, so both give the bits of the narrower bound.
TEST(SlidingWindow, NarrowsDocuments) {
  for_each_device([](Device device) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const int64_t width : {17, 64, 128}) {
        const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = width};
        for (const int64_t window : {1, 17, 64, 150}) {
          std::vector<int32_t> narrowed;
          for (const int32_t position : some_positions().as<int32_t>()) {
            narrowed.push_back(std::min(position, static_cast<int32_t>(window - 1)));
          }
          EXPECT_EQ(both_ways(device, dtype, layout, window, some_positions()),
                    both_ways(device, dtype, layout, 0, int_tensor({2, kLength}, narrowed)))
              << "window " << window;
        }
      }
    }
  });
}

TEST(SlidingWindow, AsLongAsTheRowChangesNoBit) {
  for_each_device([](Device device) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const int64_t width : {17, 64}) {
        const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = width};
        const BothWays none = both_ways(device, dtype, layout, 0);
        for (const int64_t window : {kLength, kLength + 1}) {
          EXPECT_EQ(both_ways(device, dtype, layout, window), none);
        }
        EXPECT_NE(both_ways(device, dtype, layout, kLength - 1), none);
      }
    }
  });
}

TEST(SlidingWindow, PairsThatAreSeen) {
  EXPECT_EQ(seen_pairs(8, 0, 0), 32);
  EXPECT_EQ(seen_pairs(8, 4, 0), 16);
  EXPECT_EQ(seen_pairs(8, 0, 2), 14);  // 8 x 2, less a triangle of half of 2 x 2
  EXPECT_EQ(seen_pairs(8, 4, 2), 12);  // two such rows of 4
  EXPECT_EQ(seen_pairs(8, 100, 100), 32);
}

}  // namespace
}  // namespace tandem::testing

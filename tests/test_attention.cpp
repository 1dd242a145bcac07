#include <omp.h>

#include <cmath>

#include "layers/add.h"
#include "layers/attention.h"
#include "tests/gradcheck.h"

namespace tandem::testing {
namespace {

struct Sizes {
  int64_t batch, length;
  HeadLayout layout;
};

// Below, at and across the bounds of tiles, grouped heads and odd widths among them.
const std::vector<Sizes> kSizes = {
    {2, 1, {2, 2, 3}},   {1, 5, {4, 2, 5}},   {2, 17, {2, 1, 8}},   {1, 64, {2, 2, 32}},
    {1, 65, {1, 1, 17}}, {2, 130, {6, 3, 7}}, {1, 200, {2, 2, 64}},
};

// The definition, one row of scores at a time.
std::vector<double> plain_attention(const std::vector<double>& qkv, const Sizes& sizes) {
  const auto [batch, length, layout] = sizes;
  const int64_t row = layout.row(), width = layout.width, group = layout.heads / layout.kv_heads;
  std::vector<double> y(batch * length * layout.heads * width);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < layout.heads; ++h) {
      for (int64_t t = 0; t < length; ++t) {
        const double* q = &qkv[(b * length + t) * row + h * width];
        double* out = &y[((b * length + t) * layout.heads + h) * width];
        double total = 0;
        for (int64_t s = 0; s <= t; ++s) {
          const double* k = &qkv[(b * length + s) * row + (layout.heads + h / group) * width];
          const double* v = k + layout.kv_heads * width;
          double score = 0;
          for (int64_t d = 0; d < width; ++d) {
            score += q[d] * k[d];
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
          total += weight;
          for (int64_t d = 0; d < width; ++d) {
            out[d] += weight * v[d];
          }
        }
        for (int64_t d = 0; d < width; ++d) {
          out[d] /= total;
        }
      }
    }
  }
  return y;
}

Tensor random_qkv(const Sizes& sizes, DType dtype) {
  return random_tensor({sizes.batch, sizes.length, sizes.layout.row()}, dtype, 3);
}

// f64: sums of up to 200 terms of order one, error at most 200 * 1e-16 and the same again for
// exponentials of scores of order ten: 1e-12 leaves room. f32 in the same way: 5e-4 of 2^-24 * 200
// * 10 = 1e-4 and the 2e-7 of math::exp.
TEST(Attention, MatchesTheDefinition) {
  for (const Sizes& sizes : kSizes) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::kF64, 1e-12}, {DType::kF32, 5e-4}}) {
      const Tensor qkv = random_qkv(sizes, dtype);
      TestContext test;
      const Variable y = attention(test.context, Variable(qkv), sizes.layout);
      const std::vector<double> expected = plain_attention(values_of(qkv), sizes);
      const std::vector<double> actual = values_of(y.value());
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], tolerance)
            << "length " << sizes.length << ", element " << i;
      }
    }
  }
}

TEST(Attention, GradientsMatchFiniteDifferences) {
  for (const Sizes& sizes : kSizes) {
    SCOPED_TRACE(sizes.length);
    check_gradients({Shape{sizes.batch, sizes.length, sizes.layout.row()}}, {},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return attention(context, in[0], sizes.layout);
                    });
  }
}

TEST(Attention, GradientsAccumulate) {
  const HeadLayout layout{.heads = 4, .kv_heads = 2, .width = 3};
  check_gradients(
      {Shape{1, 70, layout.row()}}, {}, [&](Context& context, const std::vector<Variable>& in) {
        return add(context, attention(context, in[0], layout), attention(context, in[0], layout));
      });
}

// f32 gradients against f64 ones. Rounding of at most 200 terms in each of two nested sums, of
// order one: 2^-24 * 200 * 10 = 1e-4, twice.
TEST(Attention, SinglePrecisionGradients) {
  for (const Sizes& sizes : kSizes) {
    std::vector<std::vector<double>> grads;
    for (DType dtype : {DType::kF64, DType::kF32}) {
      const Variable qkv = Variable::leaf(random_qkv(sizes, dtype));
      TestContext test;
      const Variable y = attention(test.context, qkv, sizes.layout);
      test.tape.backward(test.context, y, random_tensor(y.shape(), dtype, 8));
      grads.push_back(values_of(qkv.slot()->grad));
    }
    for (size_t i = 0; i < grads[0].size(); ++i) {
      ASSERT_NEAR(grads[0][i], grads[1][i], 5e-4) << "length " << sizes.length << ", element " << i;
    }
  }
}

// Positions from 100 on change: nothing before them may notice, to the last bit, also in the tile
// that holds position 100.
TEST(Attention, TheFutureIsInvisible) {
  const Sizes sizes{1, 150, {2, 1, 16}};
  const Tensor qkv = random_qkv(sizes, DType::kF32), other = random_qkv(sizes, DType::kF32);
  std::fill(other.data<float>() + 100 * sizes.layout.row(), other.data<float>() + other.elements(),
            50.0f);
  TestContext test;
  std::vector<double> y = values_of(attention(test.context, Variable(qkv), sizes.layout).value());
  std::vector<double> z = values_of(attention(test.context, Variable(other), sizes.layout).value());
  EXPECT_NE(y, z);
  y.resize(100 * 32);
  z.resize(100 * 32);
  EXPECT_EQ(y, z);
}

// Scores of several thousand neither overflow nor lose the largest one.
TEST(Attention, LargeScores) {
  const Sizes sizes{1, 70, {1, 1, 4}};
  const Tensor qkv = random_tensor({1, 70, 12}, DType::kF32, 3, 60.0);
  const Variable x = Variable::leaf(qkv);
  TestContext test;
  const Variable y = attention(test.context, x, sizes.layout);
  test.tape.backward(test.context, y, 1.0);
  for (const Tensor& tensor : {y.value(), x.slot()->grad}) {
    for (double value : values_of(tensor)) {
      EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Attention, BitsDoNotDependOnThreads) {
  const Sizes sizes{2, 100, {6, 3, 16}};
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    const Variable x = Variable::leaf(random_qkv(sizes, DType::kF32));
    TestContext test;
    const Variable y = attention(test.context, x, sizes.layout);
    results.push_back(values_of(y.value()));
    test.tape.backward(test.context, y, 1.0);
    results.push_back(values_of(x.slot()->grad));
  }
  omp_set_num_threads(omp_get_num_procs());
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[3]);
}

// The sequence in pieces of 1, 5, 70 and 4 positions against the whole; tolerance as above.
TEST(Attention, CachedEqualsWhole) {
  const Sizes sizes{1, 80, {4, 2, 6}};
  const int64_t row = sizes.layout.row(), out = sizes.layout.heads * sizes.layout.width;
  const Tensor qkv = random_qkv(sizes, DType::kF64);
  TestContext test;
  const std::vector<double> whole =
      values_of(attention(test.context, Variable(qkv), sizes.layout).value());
  const Shape shape{sizes.layout.kv_heads, 90, sizes.layout.width};
  test.context.tape = nullptr;
  KeyValueCache cache{test.context.activation(shape, DType::kF64),
                      test.context.activation(shape, DType::kF64), 0};
  for (int64_t count : {1, 5, 70, 4}) {
    const int64_t first = cache.length;
    const Variable piece(qkv.slice(first * row, count * row).reshape({1, count, row}));
    const std::vector<double> y =
        values_of(attention_cached(test.context, piece, sizes.layout, cache).value());
    ASSERT_EQ(cache.length, first + count);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], whole[first * out + static_cast<int64_t>(i)], 1e-12);
    }
  }
  const Variable more(random_tensor({1, 11, row}, DType::kF64, 1));
  EXPECT_THROW(attention_cached(test.context, more, sizes.layout, cache), Error);
}

TEST(Attention, LayoutMustFit) {
  TestContext test;
  const Variable qkv(random_tensor({1, 2, 24}, DType::kF32, 1));
  EXPECT_NO_THROW(attention(test.context, qkv, {2, 2, 4}));
  EXPECT_THROW(attention(test.context, qkv, {2, 2, 3}), Error);
  EXPECT_THROW(attention(test.context, qkv, {3, 2, 4}), Error);
}

}  // namespace
}  // namespace tandem::testing

#include <omp.h>

#include <array>
#include <cmath>

#include "layers/add/add.h"
#include "layers/attention/attention.h"
#include "layers/attention/cudnn_attention.h"
#include "src/device/copy.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

struct Sizes {
  int64_t batch, length;
  HeadLayout layout;
};

// Sizes below, at and across the bounds of tiles, also with grouped heads and odd widths.
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

// f64: sums of up to 200 terms of order one err by at most 200 * 1e-16, and exponentials of scores
// of order ten by as much again, so a tolerance of 1e-12 leaves room. f32 in the same way: 2^-24 *
// 200 * 10 = 1e-4 and the 2e-7 of math::exp, so 5e-4.
void expect_definition(Device device, DType dtype, double tolerance) {
  for (const Sizes& sizes : kSizes) {
    const Tensor qkv = random_qkv(sizes, dtype);
    TestContext test(device);
    const Variable y = attention(test.context, Variable(to_device(qkv, device)), sizes.layout);
    const std::vector<double> expected = plain_attention(values_of(qkv), sizes);
    const std::vector<double> actual = values_of(y.value());
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], tolerance)
          << "length " << sizes.length << ", element " << i;
    }
  }
}

TEST(Attention, MatchesTheDefinition) {
  expect_definition(Device::kCpu, DType::kF64, 1e-12);
  for_each_device([](Device device) { expect_definition(device, DType::kF32, 5e-4); });
}

// Every kernel of the GPU, for heads of its full width and narrower ones, at lengths around the
// bounds of its tiles. Sums run over the width and over positions.
TEST(Attention, Devices) {
  for (int64_t width : {3, 5, 16, 32, 64, 96, 128}) {
    for (int64_t length : {1, 5, 17, 33, 65}) {
      SCOPED_TRACE(str("width ", width, ", length ", length));
      const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = width};
      check_devices({Shape{1, length, layout.row()}}, {},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return attention(context, in[0], layout);
                    },
                    {.terms = length + width});
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

TEST(Attention, DevicesWithBatchAndGroups) {
  const std::vector<Sizes> all = {{2, 40, {6, 3, 8}}, {3, 7, {3, 1, 40}}, {2, 34, {4, 4, 17}}};
  for (const Sizes& sizes : all) {
    SCOPED_TRACE(sizes.length);
    check_devices({Shape{sizes.batch, sizes.length, sizes.layout.row()}}, {},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return attention(context, in[0], sizes.layout);
                  },
                  {.terms = sizes.length + sizes.layout.width});
  }
}

TEST(Attention, GradientsAccumulate) {
  const HeadLayout layout{.heads = 4, .kv_heads = 2, .width = 3};
  const auto twice = [&](Context& context, const std::vector<Variable>& in) {
    return add(context, attention(context, in[0], layout), attention(context, in[0], layout));
  };
  check_gradients({Shape{1, 70, layout.row()}}, {}, twice);
  check_devices({Shape{1, 37, layout.row()}}, {}, twice, {.terms = 2 * (37 + layout.width)});
}

// f32 gradients against f64 gradients. Two nested sums round at most 200 terms of order one each:
// 2^-24 * 200 * 10 = 1e-4, twice.
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

// Positions from 100 on change. No earlier position may change by a bit, also in the tile that
// holds position 100.
TEST(Attention, TheFutureIsInvisible) {
  const Sizes sizes{1, 150, {2, 1, 16}};
  const Tensor qkv = random_qkv(sizes, DType::kF32), other = random_qkv(sizes, DType::kF32);
  std::fill(other.data<float>() + 100 * sizes.layout.row(), other.data<float>() + other.elements(),
            50.0f);
  for_each_device([&](Device device) {
    TestContext test(device);
    const auto result = [&](const Tensor& x) {
      const Variable in(to_device(x, device));
      return values_of(attention(test.context, in, sizes.layout).value());
    };
    std::vector<double> y = result(qkv), z = result(other);
    EXPECT_NE(y, z);
    y.resize(100 * 32);
    z.resize(100 * 32);
    EXPECT_EQ(y, z);
  });
}

// Result and gradient of attention from a leaf with the values of `qkv`.
std::vector<std::vector<double>> both_ways(Device device, const Tensor& qkv,
                                           const HeadLayout& layout) {
  const Variable x = Variable::leaf(to_device(qkv, device));
  TestContext test(device);
  const Variable y = attention(test.context, x, layout);
  test.tape.backward(test.context, y, 1.0);
  return {values_of(y.value()), values_of(x.slot()->grad)};
}

// Scores of several thousand neither overflow nor lose the largest one.
TEST(Attention, LargeScores) {
  const Tensor qkv = random_tensor({1, 70, 12}, DType::kF32, 3, 60.0);
  for_each_device([&](Device device) {
    for (const std::vector<double>& values : both_ways(device, qkv, {1, 1, 4})) {
      for (double value : values) {
        EXPECT_TRUE(std::isfinite(value));
      }
    }
  });
}

// A key that is NaN makes NaN of its own query and all later ones, and of no earlier tile.
TEST(Attention, NanStays) {
  const Sizes sizes{1, 140, {1, 1, 8}};
  const Tensor qkv = random_qkv(sizes, DType::kF32);
  constexpr int64_t kPosition = 130;
  qkv.data<float>()[kPosition * sizes.layout.row() + sizes.layout.width] = std::nanf("");
  for_each_device([&](Device device) {
    const auto results = both_ways(device, qkv, sizes.layout);
    for (int64_t i = 0; i < sizes.length * sizes.layout.width; ++i) {
      const int64_t position = i / sizes.layout.width;
      if (position < 64 || position >= kPosition) {
        ASSERT_EQ(std::isnan(results[0][static_cast<size_t>(i)]), position >= kPosition) << i;
      }
    }
    // Position 0 is a key of every query.
    EXPECT_TRUE(std::isnan(results[1][static_cast<size_t>(sizes.layout.width)]));
  });
}

TEST(Attention, TheSameBitsEveryTime) {
  const Sizes sizes{2, 40, {4, 2, 16}};
  for_each_device([&](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      const Tensor qkv = rounded_to(random_qkv(sizes, DType::kF32), dtype);
      EXPECT_EQ(both_ways(device, qkv, sizes.layout), both_ways(device, qkv, sizes.layout));
    }
  });
}

TEST(Attention, BitsDoNotDependOnThreads) {
  const Sizes sizes{2, 100, {6, 3, 16}};
  std::vector<std::vector<std::vector<double>>> results;
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    results.push_back(both_ways(Device::kCpu, random_qkv(sizes, DType::kF32), sizes.layout));
  }
  omp_set_num_threads(omp_get_num_procs());
  EXPECT_EQ(results[0], results[1]);
}

// Two sequences, in the outer slots of three, in steps of their own lengths; each step's rows come
// in the other order. All rows together equal the whole sequences.
void expect_cached_equals_whole(Device device, DType dtype, int64_t width, double tolerance,
                                int64_t window = 0) {
  const Sizes sizes{2, 80, {4, 2, width}};
  const int64_t row = sizes.layout.row();
  const Tensor qkv = rounded_to(random_qkv(sizes, DType::kF64), dtype);
  TestContext test(device);
  const std::vector<double> whole = values_of(
      attention(test.context, Variable(to_device(qkv, device)), sizes.layout, window).value());
  test.context.tape = nullptr;
  KeyValueCache cache = key_value_cache(test.context, sizes.layout, 3, 80, dtype);
  for (Tensor* tensor : {&cache.keys, &cache.values}) {
    *tensor = unwritten(tensor->shape(), tensor->dtype(), device);
  }
  int64_t lengths[2] = {};
  for (const auto& counts : {std::array{5, 0}, {1, 70}, {74, 1}, {0, 9}}) {
    std::vector<int32_t> slots, positions, numbers;
    for (const int s : {1, 0}) {
      for (int i = 0; i < counts[s]; ++i, ++lengths[s]) {
        slots.push_back(2 * s);
        positions.push_back(static_cast<int32_t>(lengths[s]));
        numbers.push_back(static_cast<int32_t>(s * sizes.length + lengths[s]));
      }
    }
    const int64_t rows = std::ssize(numbers);
    const Tensor here = rounded_to(unwritten({rows, row}, DType::kF64), dtype);
    for (int64_t r = 0; r < rows; ++r) {
      copy(test_stream(), qkv.slice(numbers[r] * row, row), here.slice(r * row, row));
    }
    test.context.positions = to_device(int_tensor({rows, 1}, positions), device);
    const std::vector<double> y =
        values_of(attention_cached(test.context, Variable(to_device(here, device)), sizes.layout,
                                   cache, to_device(int_tensor({rows}, slots), device), window)
                      .value());
    const int64_t columns = sizes.layout.heads * width;
    ASSERT_EQ(std::ssize(y), rows * columns);
    for (int64_t i = 0; i < std::ssize(y); ++i) {
      ASSERT_NEAR(y[i], whole[numbers[i / columns] * columns + i % columns], tolerance)
          << "element " << i << " of " << rows << " rows";
    }
  }
  const Variable more(to_device(random_tensor({3, row}, dtype, 1), device));
  const Tensor slots = to_device(int_tensor({2}, std::vector<int32_t>{0, 1}), device);
  EXPECT_THROW(attention_cached(test.context, more, sizes.layout, cache, slots), Error);
}

// Tolerances for f64 and f32: as above. In 16 bits both results, of up to 4, are rounded once, by
// at most 2^-8 or 2^-11 of themselves, possibly in opposite directions.
TEST(Attention, CachedEqualsWhole) {
  expect_cached_equals_whole(Device::kCpu, DType::kF64, 6, 1e-12);
  for_each_device([](Device device) {
    for (const auto& [dtype, tolerance] :
         {std::pair{DType::kF32, 5e-4}, {DType::kBf16, 4 * 0x1p-7}, {DType::kFp16, 4 * 0x1p-10}}) {
      for (int64_t width : {6, 32, 96, 128}) {
        for (int64_t window : {0, 1, 3, 40}) {
          SCOPED_TRACE(str(name_of(dtype), ", width ", width, ", window ", window));
          expect_cached_equals_whole(device, dtype, width, tolerance, window);
        }
      }
    }
  });
}

TEST(Attention, LayoutMustFit) {
  TestContext test;
  const Variable qkv(random_tensor({1, 2, 24}, DType::kF32, 1));
  EXPECT_NO_THROW(attention(test.context, qkv, {2, 2, 4}));
  EXPECT_THROW(attention(test.context, qkv, {2, 2, 3}), Error);
  EXPECT_THROW(attention(test.context, qkv, {3, 2, 4}), Error);
}

// What attention does with Context::attention = kCudnn. It is an error on the CPU and for f32, and
// where cuDNN is missing, as on the emulated GPU.
std::string refusal_of_cudnn(Device device, DType dtype) {
  const HeadLayout layout{.heads = 2, .kv_heads = 2, .width = 64};
  const Variable qkv(to_device(random_tensor({1, 8, layout.row()}, dtype, 1), device));
  TestContext test(device);
  test.context.attention = AttentionKernels::kCudnn;
  try {
    attention(test.context, qkv, layout);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

TEST(Attention, CudnnIsRefusedWithOneLine) {
  for_each_device([](Device device) {
    const std::string start = "kernels.attention = cudnn: ";
    const std::string bf16 = refusal_of_cudnn(device, DType::kBf16);
    if (device == Device::kCpu) {
      EXPECT_EQ(bf16, start + "cuDNN computes on GPUs; set run.device = cuda, or use own");
      return;
    }
    EXPECT_EQ(refusal_of_cudnn(device, DType::kF32),
              start +
                  "cuDNN's attention is for bf16 and fp16, not f32; set train.precision, or "
                  "use own");
    const std::string why = cudnn_attention::why_missing();
    EXPECT_EQ(bf16, why.empty() ? "accepted" : start + why + ", or use own");
  });
}

// On a real GPU with cuDNN. Tolerances and lengths as in FlashAttention.
TEST(Attention, CudnnComputesTheSame) {
  if (!cudnn_attention::why_missing().empty()) {
    GTEST_SKIP() << cudnn_attention::why_missing();
  }
  bool has_gpu = false;
  for_each_device([&](Device device) { has_gpu |= device == Device::kCuda; });
  if (!has_gpu) {
    GTEST_SKIP() << "no GPU";
  }
  for (const auto& [heads, kv_heads, width] : {std::tuple{3, 3, 64}, {4, 2, 64}, {4, 1, 128}}) {
    for (const int64_t length : {2, 64, 100, 300}) {  // cuDNN takes no single token
      SCOPED_TRACE(str("width ", width, ", length ", length));
      const HeadLayout layout{.heads = heads, .kv_heads = kv_heads, .width = width};
      check_devices({Shape{2, length, layout.row()}}, {},
                    [&](Context& context, const std::vector<Variable>& in) {
                      if (context.stream.device() == Device::kCuda) {
                        context.attention = AttentionKernels::kCudnn;
                      }
                      return attention(context, in[0], layout);
                    },
                    {.terms = 2 * (length + width), .dtypes = {DType::kBf16, DType::kFp16}});
    }
  }
}

// The GPU holds a row of a head in the registers of a few threads, which limits a head's width.
TEST(Attention, HeadsTooWideForTheGpu) {
  for_each_device([](Device device) {
    const HeadLayout layout{.heads = 1, .kv_heads = 1, .width = 129};
    const Tensor qkv = to_device(random_tensor({1, 2, layout.row()}, DType::kF32, 1), device);
    TestContext test(device);
    if (device == Device::kCpu) {
      EXPECT_NO_THROW(attention(test.context, Variable(qkv), layout));
      return;
    }
    try {
      attention(test.context, Variable(qkv), layout);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_NE(std::string(error.what()).find("width 129"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace tandem::testing

#include <cmath>

#include "layers/dropout/dropout.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

// The result of dropout on ones.
std::vector<double> mask_of(const StepNumbers& numbers, Shape shape, double p, uint32_t site) {
  TestContext test(Device::kCpu, numbers);
  Tensor ones = Tensor::empty(test_memory(), shape, DType::kF32, MemoryClass::kData);
  std::fill_n(ones.data<float>(), ones.elements(), 1.0f);
  return values_of(dropout(test.context, Variable(ones), p, site).value());
}

TEST(Dropout, GradientsMatchFiniteDifferences) {
  check_gradients({Shape{3, 70}}, {}, [](Context& context, const std::vector<Variable>& in) {
    return dropout(context, in[0], 0.3, 5);
  });
}

TEST(Dropout, DevicesAgree) {
  for (const Shape& shape : {Shape{3, 70}, Shape{2, 5, 11}}) {
    check_devices({shape}, {}, [](Context& context, const std::vector<Variable>& in) {
      return dropout(context, in[0], 0.3, 5);
    });
  }
}

// The masks are equal, not only close: one multiplication gives the same f32 number on every
// device. 24 runs of 64 elements are two blocks of a GPU.
TEST(Dropout, EveryDeviceHasTheSameMask) {
  for (const Shape& shape : {Shape{5, 3, 37}, Shape{2, 1500}, Shape{70, 1}}) {
    const Tensor x = random_tensor(shape, DType::kF32, 1);
    std::vector<double> expected;
    for_each_device([&](Device device) {
      TestContext test(device, {.seed = 3, .step = 8, .first_sample = (int64_t{1} << 32) - 2});
      Variable y(to_device(x, device));
      const float* memory = y.data<float>();
      y = dropout(test.context, std::move(y), 0.4, 1);
      EXPECT_EQ(y.data<float>(), memory);
      if (device == Device::kCpu) {
        expected = values_of(y.value());
      }
      EXPECT_EQ(values_of(y.value()), expected);
    });
  }
}

TEST(Dropout, IdentityOutsideTrainingAndForZero) {
  TestContext test;
  const Variable x(random_tensor({2, 9}, DType::kF32, 1));
  EXPECT_EQ(dropout(test.context, x, 0, 1).data<float>(), x.data<float>());
  test.context.training = false;
  EXPECT_EQ(dropout(test.context, x, 0.5, 1).data<float>(), x.data<float>());
}

// The number of zeros is binomial. A bound of five deviations fails for one seed in two million,
// and the seed is fixed.
TEST(Dropout, DropsTheAskedFraction) {
  for (double p : {0.1, 0.5, 0.9}) {
    const std::vector<double> mask = mask_of({.seed = 7}, {4, 5000}, p, 2);
    double zeros = 0;
    for (double value : mask) {
      EXPECT_TRUE(value == 0 || value == static_cast<float>(1 / (1 - p))) << value;
      zeros += value == 0;
    }
    const double n = static_cast<double>(mask.size());
    EXPECT_NEAR(zeros, n * p, 5 * std::sqrt(n * p * (1 - p)));
  }
}

// Sample 2 of a micro-batch that begins at sample 10 is sample 12, on whichever rank it is.
TEST(Dropout, MaskBelongsToTheGlobalSample) {
  const Shape whole{5, 3, 37};
  const int64_t sample = 3 * 37;
  const std::vector<double> all =
      mask_of({.seed = 3, .step = 8, .first_sample = 10}, whole, 0.4, 1);
  const std::vector<double> part =
      mask_of({.seed = 3, .step = 8, .first_sample = 12}, {2, 3, 37}, 0.4, 1);
  EXPECT_EQ(part, std::vector<double>(all.begin() + 2 * sample, all.begin() + 4 * sample));
}

// Rows that begin and end inside samples, and inside the runs of 64 elements that share random
// words.
TEST(Dropout, RowsHaveTheirPartOfTheMask) {
  const int64_t batch = 3, length = 5, width = 37, rows = batch * length;
  const StepNumbers numbers{.seed = 3, .step = 8, .first_sample = 10};
  const std::vector<double> all = mask_of(numbers, {batch, length, width}, 0.4, 1);
  for_each_device([&](Device device) {
    for (const auto& [begin, end] : {std::pair{0, 15}, {0, 3}, {3, 6}, {7, 15}, {4, 4}}) {
      TestContext test(device, numbers);
      test.context.rows = {batch, length, {begin, end}};
      Tensor ones =
          Tensor::empty(test_memory(), {end - begin, width}, DType::kF32, MemoryClass::kData);
      std::fill_n(ones.data<float>(), ones.elements(), 1.0f);
      const Variable y = dropout(test.context, Variable(to_device(ones, device)), 0.4, 1);
      EXPECT_EQ(values_of(y.value()),
                std::vector<double>(all.begin() + begin * width, all.begin() + end * width));
    }
    TestContext test(device, numbers);
    test.context.rows = {batch, length, {0, rows}};
    EXPECT_THROW(
        dropout(test.context, Variable(to_device(random_tensor({4, 2}, DType::kF32, 1), device)),
                0.4, 1),
        Error);
  });
}

TEST(Dropout, EveryCoordinateMatters) {
  const Shape shape{2, 300};
  const std::vector<double> mask = mask_of({.seed = 1, .step = 2}, shape, 0.5, 3);
  EXPECT_EQ(mask, mask_of({.seed = 1, .step = 2}, shape, 0.5, 3));
  EXPECT_NE(mask, mask_of({.seed = 2, .step = 2}, shape, 0.5, 3));
  EXPECT_NE(mask, mask_of({.seed = 1, .step = 3}, shape, 0.5, 3));
  EXPECT_NE(mask, mask_of({.seed = 1, .step = 2}, shape, 0.5, 4));
  EXPECT_NE(std::vector<double>(mask.begin(), mask.begin() + 300),
            std::vector<double>(mask.begin() + 300, mask.end()));
  // Nor does one run of elements repeat another.
  EXPECT_NE(std::vector<double>(mask.begin(), mask.begin() + 64),
            std::vector<double>(mask.begin() + 64, mask.begin() + 128));
}

// The mask is the documented function of Philox: masks of a given seed must never change.
TEST(Dropout, MaskIsPhilox) {
  const StepNumbers numbers{.seed = 11, .step = 4, .first_sample = 6};
  const std::vector<double> mask = mask_of(numbers, {2, 200}, 0.5, 9);
  const PhiloxKey key = random_key(11, RandomUse::kDropout, 9);
  for (uint32_t sample : {0u, 1u}) {
    for (uint32_t e = 0; e < 200; ++e) {
      const PhiloxCounter words = random_words(key, 6 + sample, 4, e / 64 * 16 + e % 16);
      EXPECT_EQ(mask[sample * 200 + e], uniform_from(words[e % 64 / 16]) < 0.5f ? 0 : 2) << e;
    }
  }
}

TEST(Dropout, ProbabilityIsChecked) {
  TestContext test;
  const Variable x(random_tensor({2, 9}, DType::kF32, 1));
  EXPECT_THROW(dropout(test.context, x, 1.0, 1), Error);
  EXPECT_THROW(dropout(test.context, x, -0.1, 1), Error);
}

}  // namespace
}  // namespace tandem::testing

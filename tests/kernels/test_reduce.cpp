#include <algorithm>
#include <cmath>
#include <limits>

#include "src/kernels/reduce.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

struct Sums {
  double sum = 0, squares = 0;
  bool operator==(const Sums&) const = default;
};

// Computed on the device of x; added to `before` unless it is null.
Sums sums_of(const Tensor& x, const double* before = nullptr) {
  const Device device = x.device();
  const TestContext test(device);
  const Tensor scratch = test.context.workspace({kReduceScratch}, DType::kF64);
  const auto run = [&](auto reduce) {
    const Tensor start = Tensor::zeros(test_memory(), {1}, DType::kF64, MemoryClass::kData);
    // Without `add`, the old value must not matter.
    *start.data<double>() = before ? *before : std::numeric_limits<double>::quiet_NaN();
    const Tensor result = to_device(start, device);
    on_device(test.stream, {}, [&](auto tag) {
      reduce(tag, x.data<float>(), x.elements(), result.data<double>(), scratch.data<double>(),
             before != nullptr);
    });
    return values_of(result)[0];
  };
  return {run([](auto... arguments) { sum<float>(arguments...); }),
          run([](auto... arguments) { squared_norm<float>(arguments...); })};
}

// Sizes with tails of packs, threads and blocks. Both the sums and their references are f64, each
// with an error of at most n * 2^-53 times the sum of absolute values.
TEST(Reduce, MatchesAPlainLoop) {
  for_each_device([](Device device) {
    for (int64_t n : {1, 3, 4, 5, 1023, 4096, 4097, 100003}) {
      SCOPED_TRACE(n);
      const Tensor x = random_tensor({n}, DType::kF32, 1);
      double sum = 0, size = 0, squares = 0;
      for (double value : values_of(x)) {
        sum += value;
        size += std::abs(value);
        squares += value * value;
      }
      const Sums actual = sums_of(to_device(x, device));
      const double bound = 2 * static_cast<double>(n) * 0x1p-53;
      EXPECT_NEAR(actual.sum, sum, bound * size);
      EXPECT_NEAR(actual.squares, squares, bound * squares);
    }
  });
}

// More elements than one round of all blocks takes on a GPU. Whole numbers: every sum is exact.
TEST(Reduce, ManyElements) {
  const int64_t n = (int64_t{1} << 22) + 17;
  const Tensor x = Tensor::empty(test_memory(), {n}, DType::kF32, MemoryClass::kData);
  for (int64_t i = 0; i < n; ++i) {
    x.data<float>()[i] = static_cast<float>(i % 3 + 1);
  }
  ASSERT_EQ(n % 3, 0);
  const int64_t thirds = n / 3;
  const auto rounds = static_cast<double>(thirds);
  for_each_device([&](Device device) {
    EXPECT_EQ(sums_of(to_device(x, device)), (Sums{6 * rounds, 14 * rounds}));
  });
}

TEST(Reduce, AddsToWhatIsThere) {
  for_each_device([](Device device) {
    const Tensor ones = Tensor::empty(test_memory(), {1000}, DType::kF32, MemoryClass::kData);
    std::fill_n(ones.data<float>(), 1000, 2.0f);
    const double before = 0.5;
    EXPECT_EQ(sums_of(to_device(ones, device), &before), (Sums{2000.5, 4000.5}));
  });
}

TEST(Reduce, NothingSumsToZero) {
  for_each_device([](Device device) {
    const Tensor none = to_device(random_tensor({1}, DType::kF32, 1), device).slice(0, 0);
    const double before = 0.5;
    EXPECT_EQ(sums_of(none), (Sums{0, 0}));
    EXPECT_EQ(sums_of(none, &before), (Sums{0.5, 0.5}));
  });
}

// The place in memory decides how elements are loaded, but not the order in which they are added.
TEST(Reduce, BitsDependOnTheLengthAlone) {
  for_each_device([](Device device) {
    for (int64_t n : {7, 5001, 20001}) {
      const Tensor x = random_tensor({n + 3}, DType::kF32, 1);
      const Tensor shifted = to_device(x, device).slice(3, n);
      const Tensor aligned = to_device(x.slice(3, n), device);
      const Sums first = sums_of(aligned);
      EXPECT_EQ(sums_of(aligned), first);
      EXPECT_EQ(sums_of(shifted), first);
    }
  });
}

TEST(Reduce, BitsDoNotDependOnThreads) {
  const Tensor x = random_tensor({100003}, DType::kF32, 1);
  const int before = cpu_threads();
  set_cpu_threads(1);
  const Sums one = sums_of(x);
  set_cpu_threads(3);
  EXPECT_EQ(sums_of(x), one);
  set_cpu_threads(before);
}

TEST(Reduce, NotFiniteStaysVisible) {
  for_each_device([](Device device) {
    const Tensor x = random_tensor({5000}, DType::kF32, 1);
    x.data<float>()[4321] = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isinf(sums_of(to_device(x, device)).squares));
    x.data<float>()[17] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(sums_of(to_device(x, device)).squares));
  });
}

TEST(Reduce, DoublesOnTheCpu) {
  const std::vector<double> x(20001, 3.0);
  double result = 0;
  sum(Cpu{}, x.data(), 20001, &result, nullptr, false);
  EXPECT_EQ(result, 60003);
  squared_norm(Cpu{}, x.data(), 20001, &result, nullptr, true);
  EXPECT_EQ(result, 60003 + 180009);
}

}  // namespace
}  // namespace tandem::testing

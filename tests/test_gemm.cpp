#include <omp.h>

#include <cmath>
#include <thread>

#include "src/core/gemm.h"
#include "src/core/math.h"
#include "tests/harness.h"

namespace tandem::testing {
namespace {

struct Sizes {
  int64_t m, n, k;
};

// One row or column, odd remainders, tiles exactly, several blocks in each direction, no depth;
// enough for several threads, cut along rows and along columns.
const std::vector<Sizes> kSizes = {
    {1, 1, 1},    {1, 70, 33},  {70, 1, 33},   {14, 32, 16}, {15, 33, 17},  {3, 5, 1100},
    {300, 65, 7}, {29, 800, 9}, {128, 96, 65}, {5, 6, 0},    {20, 700, 50}, {700, 20, 50},
};

template <class T>
std::vector<T> random_values(int64_t count, uint64_t seed) {
  const Tensor values = random_tensor({count}, dtype_of<T>, seed);
  const auto span = values.as<T>();
  return std::vector<T>(span.begin(), span.end());
}

struct Call {
  Sizes sizes;
  Transpose ta, tb;
  double alpha, beta;
  bool with_bias;
  int64_t shift = 0;  // elements by which every operand begins past an aligned address
};

// A matrix [rows, columns] as stored, rows 3 elements further apart than they are long.
struct Matrix {
  Tensor all;  // begins `shift` elements before the matrix
  int64_t shift, stride;

  Matrix(int64_t rows, int64_t columns, DType dtype, uint64_t seed, int64_t shift_)
      : all(rounded_to(random_tensor({rows * (columns + 3) + 1 + shift_}, DType::kF32, seed),
                       dtype)),
        shift(shift_),
        stride(columns + 3) {}
  double operator()(int64_t row, int64_t column) const {
    return values[shift + row * stride + column];
  }
  std::vector<double> values = values_of(all);
};

template <class T, class C>
Tensor multiplied(Device device, const Call& call, const Matrix& a, const Matrix& b,
                  const Tensor& bias, const Matrix& c) {
  const auto& [m, n, k] = call.sizes;
  const Tensor a_there = to_device(a.all, device), b_there = to_device(b.all, device);
  const Tensor bias_there = to_device(bias, device), c_there = to_device(c.all, device);
  on_device(test_stream(device), [&]<class D>(D tag) {
    if constexpr (std::is_same_v<D, Cpu> || !std::is_same_v<T, double>) {
      gemm<T>(tag, call.ta, call.tb, m, n, k, static_cast<Wide<T>>(call.alpha),
              a_there.data<T>() + call.shift, a.stride, b_there.data<T>() + call.shift, b.stride,
              static_cast<Wide<T>>(call.beta), c_there.data<C>() + call.shift, c.stride,
              call.with_bias ? bias_there.data<T>() + call.shift : nullptr);
    }
  });
  return to_host(c_there);
}

// The definition in f64 against the kernel: a sum of k products of normal numbers is off by at most
// k roundings of sums around sqrt(k), and the result by one to C's type.
template <class T, class C>
void check(Device device, const Call& call) {
  const auto& [m, n, k] = call.sizes;
  const bool a_flipped = call.ta == Transpose::kYes, b_flipped = call.tb == Transpose::kYes;
  const Matrix a(a_flipped ? k : m, a_flipped ? m : k, dtype_of<T>, 1, call.shift);
  const Matrix b(b_flipped ? n : k, b_flipped ? k : n, dtype_of<T>, 2, call.shift);
  const Matrix bias(1, n, dtype_of<T>, 3, call.shift);
  Matrix c(m, n, dtype_of<C>, 4, call.shift);
  if (call.beta == 0) {
    for (int64_t i = 0; i < m; ++i) {
      std::fill_n(c.all.data<C>() + call.shift + i * c.stride, n, C(NAN));
    }
  }
  const std::vector<double> result = values_of(multiplied<T, C>(device, call, a, b, bias.all, c));
  const double epsilon = sizeof(Wide<T>) == 4 ? 0x1p-24 : 0x1p-53;
  const double depth = static_cast<double>(k) + 4;
  const double tolerance = 4 * depth * std::sqrt(depth) * epsilon;
  const double rounding = std::is_same_v<C, Bf16> ? 0x1p-8 : std::is_same_v<C, Fp16> ? 0x1p-11 : 0;
  for (int64_t at = 0; at < c.all.elements(); ++at) {
    const int64_t i = (at - call.shift) / c.stride, j = (at - call.shift) % c.stride;
    if (at < call.shift || j >= n || i >= m) {
      ASSERT_EQ(result[at], c.values[at]) << "written outside, at " << at;
      continue;
    }
    double expected = call.beta == 0 ? 0 : call.beta * c(i, j);
    expected += call.with_bias ? bias(0, j) : 0;
    for (int64_t p = 0; p < k; ++p) {
      expected += call.alpha * (a_flipped ? a(p, i) : a(i, p)) * (b_flipped ? b(j, p) : b(p, j));
    }
    ASSERT_NEAR(result[at], expected, tolerance + rounding * std::abs(expected)) << i << ", " << j;
  }
}

void for_each_call(const std::function<void(const Call&)>& body) {
  for (const Sizes& s : kSizes) {
    for (Transpose ta : {Transpose::kNo, Transpose::kYes}) {
      for (Transpose tb : {Transpose::kNo, Transpose::kYes}) {
        SCOPED_TRACE(str(s.m, " x ", s.n, " x ", s.k, ta == Transpose::kYes ? ", A^T" : "",
                         tb == Transpose::kYes ? ", B^T" : ""));
        body({.sizes = s, .ta = ta, .tb = tb, .alpha = 1, .beta = 0, .with_bias = false});
      }
    }
  }
}

// All of a type T: plain, and with everything that can be added.
template <class T>
void check_all(Device device, Call call) {
  check<T, T>(device, call);
  call.alpha = 0.5;
  call.beta = 1;
  call.with_bias = true;
  check<T, T>(device, call);
}

TEST(Gemm, MatchesTheDefinition) {
  for_each_device([](Device device) {
    for_each_call([&](Call call) {
      check_all<float>(device, call);
      check_all<Bf16>(device, call);
      check_all<Fp16>(device, call);
      if (device == Device::kCpu) {
        check<double, double>(device, call);
        call.alpha = -2;
        call.beta = 0.25;
        call.with_bias = true;
        check<double, double>(device, call);
      }
    });
  });
}

// Gradients of 16-bit weights: C is f32, and adds up over calls.
TEST(Gemm, SixteenBitProductsIntoF32) {
  for_each_device([](Device device) {
    for_each_call([&](Call call) {
      for (double beta : {0.0, 1.0}) {
        call.beta = beta;
        check<Bf16, float>(device, call);
        check<Fp16, float>(device, call);
      }
    });
  });
}

// The same sizes at every alignment: what was chosen for one must not serve another. A suite of its
// own: where a library's kernel loads from such an address all the same, the process can do no more
// on this GPU.
TEST(GemmMisaligned, OperandsMayBeginAnywhere) {
  for_each_device([](Device device) {
    for (int64_t shift : {0, 1, 2, 3, 4, 8}) {
      SCOPED_TRACE(str("shifted by ", shift));
      const Call call{.sizes = {24, 40, 16},
                      .ta = Transpose::kNo,
                      .tb = Transpose::kYes,
                      .alpha = 1,
                      .beta = 0,
                      .with_bias = false,
                      .shift = shift};
      check_all<float>(device, call);
      check_all<Bf16>(device, call);
      check_all<Fp16>(device, call);
      check<Bf16, float>(device, call);
    }
  });
}

TEST(Gemm, EmptyResultsAreLeftAlone) {
  for_each_device([](Device device) {
    for (const Sizes& sizes : {Sizes{0, 5, 3}, Sizes{5, 0, 3}, Sizes{0, 0, 0}}) {
      const Call call{.sizes = sizes,
                      .ta = Transpose::kNo,
                      .tb = Transpose::kNo,
                      .alpha = 1,
                      .beta = 0,
                      .with_bias = false};
      check_all<float>(device, call);
      check_all<Bf16>(device, call);
    }
  });
}

TEST(Gemm, BiasNeedsAResultOfItsType) {
  for_each_device([](Device device) {
    const Call call{.sizes = {2, 2, 2},
                    .ta = Transpose::kNo,
                    .tb = Transpose::kNo,
                    .alpha = 1,
                    .beta = 0,
                    .with_bias = true};
    const auto wrong = [&] { check<Bf16, float>(device, call); };
    EXPECT_THROW(wrong(), Error);
  });
}

TEST(Gemm, ThreadsMultiplyAtOnceOnTheirOwnStreams) {
  for_each_device([](Device device) {
    constexpr int64_t kSize = 24;
    const Tensor a = to_device(random_tensor({kSize, kSize}, DType::kF32, 1), device);
    std::vector<Tensor> results;
    for (int i = 0; i < 2; ++i) {
      results.push_back(to_device(a, device));
    }
    std::vector<std::thread> threads;
    for (const Tensor& c : results) {
      threads.emplace_back([&] {
        Stream stream = Stream::compute(device);
        for (int64_t n = 1; n <= kSize; ++n) {  // each size is new to both
          on_device(stream, [&](auto tag) {
            gemm<float>(tag, Transpose::kNo, Transpose::kNo, n, n, n, 1, a.data<float>(), kSize,
                        a.data<float>(), kSize, 1, c.data<float>(), kSize);
          });
        }
        stream.synchronize();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(values_of(results[0]), values_of(results[1]));
  });
}

// Some kernels of OpenBLAS round differently at the ends of a piece, so threads may change the last
// bits: sums of 700 products of size one, each rounding at most 2^-24 of a partial sum below 100.
TEST(Gemm, RepeatsItsBitsForEachNumberOfThreads) {
  const int64_t m = 130, n = 515, k = 700;
  const std::vector<float> a = random_values<float>(m * k, 1), b = random_values<float>(n * k, 2);
  const auto product = [&](int threads) {
    omp_set_num_threads(threads);
    std::vector<float> c(m * n);
    gemm<float>(Cpu{}, Transpose::kNo, Transpose::kYes, m, n, k, 1.0f, a.data(), k, b.data(), k,
                0.0f, c.data(), n);
    omp_set_num_threads(omp_get_num_procs());
    return c;
  };
  const std::vector<float> one = product(1);
  for (int threads : {1, 2, 3}) {
    const std::vector<float> again = product(threads);
    EXPECT_EQ(again, product(threads));
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_NEAR(again[i], one[i], 700 * 100 * 0x1p-24) << threads << " threads, element " << i;
    }
  }
}

// Relative error of math::exp as documented, over its whole range; at the ends it saturates.
TEST(Math, ExpOfFloat) {
  for (int i = -87299; i <= 88699; ++i) {
    const float x = static_cast<float>(i) * 1e-3f;
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(math::exp(x), exact, 2e-7 * exact) << x;
  }
  EXPECT_EQ(math::exp(0.0f), 1.0f);
  EXPECT_EQ(math::exp(-88.0f), 0.0f);
  EXPECT_EQ(math::exp(-1e30f), 0.0f);
  EXPECT_EQ(math::exp(-INFINITY), 0.0f);
  EXPECT_EQ(math::exp(89.0f), INFINITY);
  EXPECT_EQ(math::exp(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(math::exp(NAN)));
}

}  // namespace
}  // namespace tandem::testing

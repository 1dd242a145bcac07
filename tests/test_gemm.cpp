#include <omp.h>

#include <cmath>

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

// Rows are 3 elements further apart than they are long. The definition in f64 against the kernel: a
// sum of k products of normal numbers is off by at most k roundings of sums around sqrt(k).
template <class T>
void check(const Sizes& s, Transpose ta, Transpose tb, T alpha, T beta, bool with_bias) {
  const int64_t a_rows = ta == Transpose::kNo ? s.m : s.k, a_columns = s.m + s.k - a_rows;
  const int64_t b_rows = tb == Transpose::kNo ? s.k : s.n, b_columns = s.k + s.n - b_rows;
  const int64_t lda = a_columns + 3, ldb = b_columns + 3, ldc = s.n + 3;
  const std::vector<T> a = random_values<T>(a_rows * lda + 1, 1);
  const std::vector<T> b = random_values<T>(b_rows * ldb + 1, 2);
  const std::vector<T> bias = random_values<T>(s.n, 3);
  std::vector<T> c = random_values<T>(s.m * ldc, 4);
  const std::vector<T> before = c;
  if (beta == T(0)) {
    for (int64_t i = 0; i < s.m; ++i) {
      std::fill_n(c.begin() + i * ldc, s.n, static_cast<T>(NAN));
    }
  }
  gemm<T>(Cpu{}, ta, tb, s.m, s.n, s.k, alpha, a.data(), lda, b.data(), ldb, beta, c.data(), ldc,
          with_bias ? bias.data() : nullptr);
  const double epsilon = sizeof(T) == 4 ? 0x1p-24 : 0x1p-53, depth = static_cast<double>(s.k) + 4;
  const double tolerance = 4 * depth * std::sqrt(depth) * epsilon;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < ldc; ++j) {
      const int64_t at = i * ldc + j;
      if (j >= s.n) {
        ASSERT_EQ(c[at], before[at]) << "written outside at " << i << ", " << j;
        continue;
      }
      double expected = (beta == T(0) ? 0 : static_cast<double>(beta * before[at]));
      expected += with_bias ? static_cast<double>(bias[j]) : 0;
      for (int64_t p = 0; p < s.k; ++p) {
        expected += static_cast<double>(alpha) *
                    a[ta == Transpose::kNo ? i * lda + p : p * lda + i] *
                    b[tb == Transpose::kNo ? p * ldb + j : j * ldb + p];
      }
      ASSERT_NEAR(c[at], expected, tolerance) << i << ", " << j;
    }
  }
}

TEST(Gemm, MatchesTheDefinition) {
  for (const Sizes& s : kSizes) {
    for (Transpose ta : {Transpose::kNo, Transpose::kYes}) {
      for (Transpose tb : {Transpose::kNo, Transpose::kYes}) {
        SCOPED_TRACE(str(s.m, " x ", s.n, " x ", s.k, ta == Transpose::kYes ? ", A^T" : "",
                         tb == Transpose::kYes ? ", B^T" : ""));
        check<float>(s, ta, tb, 1.0f, 0.0f, false);
        check<float>(s, ta, tb, 0.5f, 1.0f, true);
        check<double>(s, ta, tb, 1.0, 0.0, true);
        check<double>(s, ta, tb, -2.0, 0.25, false);
      }
    }
  }
}

TEST(Gemm, BitsDoNotDependOnThreads) {
  const int64_t m = 130, n = 515, k = 700;
  const std::vector<float> a = random_values<float>(m * k, 1), b = random_values<float>(n * k, 2);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    std::vector<float> c(m * n);
    gemm<float>(Cpu{}, Transpose::kNo, Transpose::kYes, m, n, k, 1.0f, a.data(), k, b.data(), k,
                0.0f, c.data(), n);
    results.push_back(c);
  }
  omp_set_num_threads(omp_get_num_procs());
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
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

#include <algorithm>
#include <cmath>
#include <limits>

#include "layers/conv2d/conv2d.h"
#include "tests/support/gradcheck.h"

namespace tandem::testing {
namespace {

// A sum and the sum of its terms' absolute values. Adding n products in any order in arithmetic
// with unit roundoff u errs by at most n u / (1 - n u) times the latter (Higham 2002, section 3.1).
struct Reference {
  double value = 0, magnitude = 0;
  int64_t terms = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
    ++terms;
  }
};

// Calls f(index of x, index of w, index of y) for every product of the convolution.
template <class F>
void for_each_product(const Conv2dShape& s, F f) {
  for (int64_t n = 0; n < s.batch; ++n) {
    for (int64_t oh = 0; oh < s.out_height(); ++oh) {
      for (int64_t ow = 0; ow < s.out_width(); ++ow) {
        for (int64_t kh = 0; kh < s.kernel_h; ++kh) {
          for (int64_t kw = 0; kw < s.kernel_w; ++kw) {
            const int64_t ih = oh * s.stride - s.padding + kh;
            const int64_t iw = ow * s.stride - s.padding + kw;
            if (ih < 0 || ih >= s.height || iw < 0 || iw >= s.width) {
              continue;
            }
            for (int64_t co = 0; co < s.out_channels; ++co) {
              for (int64_t ci = 0; ci < s.in_channels; ++ci) {
                f(((n * s.height + ih) * s.width + iw) * s.in_channels + ci,
                  ((co * s.kernel_h + kh) * s.kernel_w + kw) * s.in_channels + ci,
                  ((n * s.out_height() + oh) * s.out_width() + ow) * s.out_channels + co);
              }
            }
          }
        }
      }
    }
  }
}

template <class T>
std::vector<T> random_values(int64_t count, uint64_t seed) {
  const Tensor tensor = random_tensor({count}, dtype_of<T>, seed);
  return {tensor.as<T>().begin(), tensor.as<T>().end()};
}

// Unwritten memory: reading it gives NaN, and a write after its end is noticed.
template <class T>
class Poisoned {
 public:
  explicit Poisoned(int64_t count) : values_(static_cast<size_t>(count) + kGuards, kNan) {
    std::fill(values_.end() - kGuards, values_.end(), T(7));
  }
  ~Poisoned() {
    for (size_t i = values_.size() - kGuards; i < values_.size(); ++i) {
      EXPECT_EQ(values_[i], T(7)) << "written behind the end";
    }
  }
  T* data() { return values_.data(); }
  std::vector<T> values() const { return {values_.begin(), values_.end() - kGuards}; }

 private:
  static constexpr size_t kGuards = 64;
  static constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  std::vector<T> values_;
};

template <class T>
struct Gradients {
  std::vector<T> y, dx, dw;
};

// Checks the three kernels on random operands. With beta 1 the gradients are added to `start`.
template <class T>
Gradients<T> run_kernels(const Conv2dShape& s, const std::vector<T>& x, const std::vector<T>& w,
                         const std::vector<T>& dy, bool add, T start) {
  Poisoned<T> y(static_cast<int64_t>(dy.size())), dx(static_cast<int64_t>(x.size())),
      dw(static_cast<int64_t>(w.size()));
  if (add) {
    std::fill_n(dx.data(), x.size(), start);
    std::fill_n(dw.data(), w.size(), start);
  }
  const T beta = add ? T(1) : T(0);
  Poisoned<T> forward(kernels::conv2d_forward_workspace(Cpu{}, dtype_of<T>, s));
  kernels::conv2d_forward(Cpu{}, s, x.data(), w.data(), y.data(), forward.data());
  Poisoned<T> data(kernels::conv2d_backward_data_workspace(Cpu{}, dtype_of<T>, s));
  kernels::conv2d_backward_data(Cpu{}, s, dy.data(), w.data(), dx.data(), beta, data.data());
  Poisoned<T> weight(kernels::conv2d_backward_weight_workspace(Cpu{}, dtype_of<T>, s));
  kernels::conv2d_backward_weight(Cpu{}, s, x.data(), dy.data(), dw.data(), beta, weight.data());
  return {y.values(), dx.values(), dw.values()};
}

// Largest errors of Winograd's algorithm (layers/conv2d/winograd.h), in units of u, if no product
// of two elements exceeds `largest`. Transforms of C channels or P tiles have up to 12 roundings,
// and their sums are added from up to 12 blocks or 16 shares.
struct WinogradErrors {
  double y = 0, dx = 0, dw = 0;

  WinogradErrors(const Conv2dShape& s, double largest_xw, double largest_dyw, double largest_dyx) {
    // |G w G^T| <= (3/2)^2 |w| and |B^T d B| <= 2^2 |d|. An output adds 3 x 3 positions.
    const auto of_channels = [](int64_t channels) {
      const auto c = static_cast<double>(channels);
      return (c + 24) * 81 * c;
    };
    y = of_channels(s.in_channels) * largest_xw;
    dx = of_channels(s.out_channels) * largest_dyw;
    // |A dy A^T| <= 2^2 |dy|, and G^T (...) G adds positions with weights that sum to 2^2.
    const int64_t tiles = (s.out_height() + 1) / 2 * ((s.out_width() + 1) / 2);
    const auto p = static_cast<double>(s.batch * tiles);
    dw = (p + 28) * 64 * p * largest_dyx;
  }
};

bool may_use_winograd(const Conv2dShape& s) {
  return s.kernel_h == 3 && s.kernel_w == 3 && s.stride == 1 && s.in_channels % 16 == 0 &&
         s.out_channels % 16 == 0;
}

// `errors`: the largest error of any element in units of u; null: each element has its own bound.
template <class T>
void expect_near(const std::vector<T>& actual, const std::vector<Reference>& expected, double start,
                 const double* errors, const char* what) {
  constexpr double kRoundoff = std::numeric_limits<T>::epsilon() / 2;
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const Reference& e = expected[i];
    // Twice the bound, since the reference is itself a sum in f64; one addition more for beta.
    const double own = static_cast<double>(e.terms + 2) * (e.magnitude + std::abs(start));
    const double bound = 2 * kRoundoff * (errors ? *errors + 2 * std::abs(start) : own);
    ASSERT_LE(std::abs(static_cast<double>(actual[i]) - (e.value + start)), bound)
        << what << "[" << i << "]";
  }
}

template <class T>
double largest(const std::vector<T>& values) {
  double most = 0;
  for (const T value : values) {
    most = std::max(most, std::abs(static_cast<double>(value)));
  }
  return most;
}

template <class T>
void check_against_reference(const Conv2dShape& s, bool add = false) {
  SCOPED_TRACE(str("[", s.batch, ", ", s.height, ", ", s.width, ", ", s.in_channels, "] * [",
                   s.out_channels, ", ", s.kernel_h, ", ", s.kernel_w, "] stride ", s.stride,
                   " padding ", s.padding, " ", name_of(dtype_of<T>)));
  const auto x = random_values<T>(s.batch * s.height * s.width * s.in_channels, 1);
  const auto w = random_values<T>(s.out_channels * s.kernel_h * s.kernel_w * s.in_channels, 2);
  const auto dy = random_values<T>(s.batch * s.out_height() * s.out_width() * s.out_channels, 3);
  std::vector<Reference> y(dy.size()), dx(x.size()), dw(w.size());
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) {
    y[iy].add(static_cast<double>(x[ix]) * static_cast<double>(w[iw]));
    dx[ix].add(static_cast<double>(dy[iy]) * static_cast<double>(w[iw]));
    dw[iw].add(static_cast<double>(dy[iy]) * static_cast<double>(x[ix]));
  });
  const T start = add ? T(0.5) : T(0);
  const Gradients<T> actual = run_kernels(s, x, w, dy, add, start);
  const WinogradErrors errors(s, largest(x) * largest(w), largest(dy) * largest(w),
                              largest(dy) * largest(x));
  const bool winograd = may_use_winograd(s);
  expect_near(actual.y, y, 0, winograd ? &errors.y : nullptr, "y");
  expect_near(actual.dx, dx, static_cast<double>(start), winograd ? &errors.dx : nullptr, "dx");
  expect_near(actual.dw, dw, static_cast<double>(start), winograd ? &errors.dw : nullptr, "dw");
}

class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(cpu_threads()) { set_cpu_threads(threads); }
  ~ThreadCount() { set_cpu_threads(before_); }

 private:
  int before_;
};

Conv2dShape square_kernel(int64_t batch, int64_t height, int64_t width, int64_t in, int64_t out,
                          int64_t kernel, int64_t stride, int64_t padding) {
  return {.batch = batch,
          .height = height,
          .width = width,
          .in_channels = in,
          .out_channels = out,
          .kernel_h = kernel,
          .kernel_w = kernel,
          .stride = stride,
          .padding = padding};
}

TEST(Conv2dKernels, MatchPlainLoops) {
  struct Case {
    int64_t height, width, in, out;
  };
  for (const Case c : {Case{7, 9, 3, 5}, Case{5, 21, 16, 17}, Case{8, 8, 1, 64}, Case{6, 13, 17, 1},
                       Case{9, 5, 64, 16}, Case{10, 16, 5, 32}}) {
    for (int64_t kernel : {1, 3, 5}) {
      for (int64_t stride : {1, 2, 3}) {
        for (int64_t padding : {0, 1, 2}) {
          const Conv2dShape s =
              square_kernel(2, c.height, c.width, c.in, c.out, kernel, stride, padding);
          check_against_reference<float>(s);
          check_against_reference<double>(s);
        }
      }
    }
  }
}

TEST(Conv2dKernels, BetaOneAdds) {
  for (int64_t stride : {1, 2, 3}) {
    check_against_reference<float>(square_kernel(3, 9, 7, 17, 33, 3, stride, 1), true);
    check_against_reference<double>(square_kernel(3, 9, 7, 17, 33, 3, stride, 1), true);
  }
  // No output reads most pixels of x, so their gradients keep their old values.
  check_against_reference<float>(square_kernel(2, 9, 9, 3, 4, 1, 3, 0), true);
}

// Odd and even sizes, channels that fill blocks or do not, and more tiles than are computed at
// once.
TEST(Conv2dKernels, WinogradMatchesPlainLoops) {
  struct Case {
    int64_t batch, height, width, in, out;
  };
  for (const Case c : {Case{3, 7, 9, 16, 16}, Case{2, 2, 3, 48, 16}, Case{3, 6, 8, 16, 80},
                       Case{17, 5, 6, 32, 16}, Case{1, 3, 14, 96, 64}}) {
    for (int64_t padding : {0, 1, 2, 3}) {
      if (c.height + 2 * padding < 3) {
        continue;
      }
      for (bool add : {false, true}) {
        const Conv2dShape s = square_kernel(c.batch, c.height, c.width, c.in, c.out, 3, 1, padding);
        check_against_reference<float>(s, add);
        check_against_reference<double>(s, add);
      }
    }
  }
}

TEST(Conv2dKernels, WinogradIsExactForSmallWholeNumbers) {
  const Conv2dShape s = square_kernel(2, 6, 7, 32, 16, 3, 1, 1);
  const auto whole = [](int64_t count, int64_t step) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(i * step % 7 - 3);
    }
    return values;
  };
  const auto x = whole(s.x_elements(), 5), w = whole(s.w_elements(), 3);
  const auto dy = whole(s.y_elements(), 2);
  std::vector<float> y(dy.size()), dx(x.size()), dw(w.size());
  for_each_product(s, [&](int64_t ix, int64_t iw, int64_t iy) {
    y[iy] += x[ix] * w[iw];
    dx[ix] += dy[iy] * w[iw];
    dw[iw] += dy[iy] * x[ix];
  });
  const Gradients<float> actual = run_kernels(s, x, w, dy, false, 0.0f);
  EXPECT_TRUE(actual.y == y && actual.dx == dx && actual.dw == dw);
}

TEST(Conv2dKernels, KernelThatIsNotSquareAndImageSmallerThanIt) {
  Conv2dShape s = square_kernel(2, 6, 11, 4, 6, 1, 2, 2);
  s.kernel_h = 2;
  s.kernel_w = 5;
  check_against_reference<float>(s);
  check_against_reference<float>(square_kernel(2, 1, 1, 5, 7, 3, 1, 1));
  check_against_reference<float>(square_kernel(1, 2, 3, 3, 3, 7, 2, 3));
  check_against_reference<float>(square_kernel(1, 16, 16, 1, 2, 16, 1, 0));
}

// Several bands of rows per image, and more images than shares of the weight gradient.
TEST(Conv2dKernels, SizesOfAResNet) {
  check_against_reference<float>(square_kernel(20, 32, 32, 16, 16, 3, 1, 1));
  check_against_reference<float>(square_kernel(3, 32, 32, 16, 32, 3, 2, 1));
  check_against_reference<float>(square_kernel(3, 16, 16, 32, 64, 3, 2, 1));
  check_against_reference<float>(square_kernel(5, 8, 8, 64, 64, 3, 1, 1));
}

TEST(Conv2dKernels, SameBitsForEveryNumberOfThreads) {
  for (const Conv2dShape& s :
       {square_kernel(19, 17, 15, 16, 20, 3, 1, 1), square_kernel(19, 17, 15, 5, 32, 3, 2, 1),
        square_kernel(19, 17, 15, 16, 48, 3, 1, 1)}) {
    const auto x = random_values<float>(s.batch * s.height * s.width * s.in_channels, 1);
    const auto w = random_values<float>(s.out_channels * 9 * s.in_channels, 2);
    const auto dy =
        random_values<float>(s.batch * s.out_height() * s.out_width() * s.out_channels, 3);
    const auto run = [&](int threads) {
      const ThreadCount count(threads);
      return run_kernels(s, x, w, dy, false, 0.0f);
    };
    const Gradients<float> one = run(1);
    for (int threads : {2, 3, 7}) {
      const Gradients<float> many = run(threads);
      EXPECT_TRUE(one.y == many.y && one.dx == many.dx && one.dw == many.dw) << threads;
    }
  }
}

}  // namespace
}  // namespace tandem::testing

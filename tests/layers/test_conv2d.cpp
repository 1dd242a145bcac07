#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "layers/add/add.h"
#include "layers/conv2d/conv2d.h"
#include "tests/support/device_check.h"

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

template <class T>
void expect_near(const std::vector<T>& actual, const std::vector<Reference>& expected, double start,
                 const char* what) {
  constexpr double kRoundoff = std::numeric_limits<T>::epsilon() / 2;
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const Reference& e = expected[i];
    // Twice the bound, since the reference is itself a sum in f64; one addition more for beta.
    const double bound =
        2 * static_cast<double>(e.terms + 2) * kRoundoff * (e.magnitude + std::abs(start));
    ASSERT_LE(std::abs(static_cast<double>(actual[i]) - (e.value + start)), bound)
        << what << "[" << i << "]";
  }
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
  expect_near(actual.y, y, 0, "y");
  expect_near(actual.dx, dx, static_cast<double>(start), "dx");
  expect_near(actual.dw, dw, static_cast<double>(start), "dw");
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
       {square_kernel(19, 17, 15, 16, 20, 3, 1, 1), square_kernel(19, 17, 15, 5, 32, 3, 2, 1)}) {
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

TEST(Conv2d, GradientsMatchFiniteDifferences) {
  for (int64_t stride : {1, 2}) {
    Parameter weight{.name = "w", .shape = {5, 3, 3, 4}};
    check_gradients({Shape{2, 5, 6, 4}}, {&weight},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return conv2d(context, in[0], weight, stride, 1);
                    });
  }
}

// A weight that is used twice: its second gradient is added to the first.
TEST(Conv2d, SharedWeightAccumulates) {
  Parameter weight{.name = "w", .shape = {4, 3, 3, 4}};
  check_gradients({Shape{2, 4, 4, 4}}, {&weight},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return conv2d(context, conv2d(context, in[0], weight, 1, 1), weight, 1, 1);
                  });
}

// --- every device and precision ---

void check_conv2d_on_devices(const Shape& x, const Shape& w, int64_t stride, int64_t padding) {
  SCOPED_TRACE(str(x, " * ", w, " stride ", stride, " padding ", padding));
  Parameter weight{.name = "w", .shape = w};
  // Sums over taps, over taps of dx, over pixels.
  const int64_t terms = std::max(
      {w[1] * w[2] * std::max(w[0], w[3]), x[0] * (x[1] + 2 * padding) * (x[2] + 2 * padding)});
  check_devices({x}, {&weight},
                [&](Context& context, const std::vector<Variable>& in) {
                  return conv2d(context, in[0], weight, stride, padding);
                },
                {.terms = terms, .roundings = 1});
}

// Images of odd sizes, and channels that do or do not fill 16-byte packs and tiles of channels.
TEST(Conv2dDevices, KernelsStridesPaddingsAndChannels) {
  struct Channels {
    int64_t in, out;
  };
  constexpr std::array kChannels{Channels{1, 3},  Channels{3, 17}, Channels{16, 8}, Channels{5, 33},
                                 Channels{8, 65}, Channels{8, 72}, Channels{33, 5}};
  size_t next = 0;
  for (int64_t kernel : {1, 3, 5}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t padding : {0, 1, 2}) {
        for (int repeat = 0; repeat < 2; ++repeat) {
          const Channels c = kChannels[next++ % kChannels.size()];
          check_conv2d_on_devices({2, 5, 7, c.in}, {c.out, kernel, kernel, c.in}, stride, padding);
        }
      }
    }
  }
}

// Several tiles of pixels, taps and channels, and several shares of the weight gradient.
TEST(Conv2dDevices, ManyTiles) {
  check_conv2d_on_devices({3, 9, 11, 72}, {72, 3, 3, 72}, 1, 1);
  check_conv2d_on_devices({3, 9, 11, 65}, {67, 1, 1, 65}, 1, 0);
  check_conv2d_on_devices({5, 17, 15, 3}, {16, 5, 5, 3}, 2, 2);
}

TEST(Conv2dDevices, KernelThatIsNotSquareAndImageSmallerThanIt) {
  check_conv2d_on_devices({2, 6, 11, 4}, {6, 2, 5, 4}, 2, 2);
  check_conv2d_on_devices({2, 1, 1, 5}, {7, 3, 3, 5}, 3, 1);
  check_conv2d_on_devices({1, 2, 3, 8}, {8, 7, 7, 8}, 2, 3);
  check_conv2d_on_devices({1, 16, 16, 1}, {2, 16, 16, 1}, 1, 0);
}

// The second gradients of the weight and of the input are added to the first.
TEST(Conv2dDevices, GradientsAccumulate) {
  for (int64_t channels : {5, 8}) {
    Parameter weight{.name = "w", .shape = {channels, 3, 3, channels}};
    check_devices({Shape{2, 4, 5, channels}}, {&weight},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return add(context, conv2d(context, in[0], weight, 1, 1),
                               conv2d(context, in[0], weight, 1, 1));
                  },
                  {.terms = 9 * 8, .roundings = 4});
  }
}

TEST(Conv2dDevices, EmptyBatch) { check_conv2d_on_devices({0, 5, 5, 4}, {4, 3, 3, 4}, 1, 1); }

struct Results {
  std::vector<double> y, dx, dw;
  bool operator==(const Results&) const = default;
};

// x begins `offset` elements after an aligned address.
Results run_on(Device device, DType dtype, int64_t offset) {
  const Shape shape{3, 7, 9, 16};
  const Tensor values = rounded_to(random_tensor({3 * 7 * 9 * 16 + 8}, DType::kF32, 1), dtype);
  Tensor moved = Tensor::empty(test_memory(), values.shape(), dtype, MemoryClass::kData);
  const int64_t count = 3 * 7 * 9 * 16, bytes = size_of(dtype);
  std::copy_n(values.raw(), count * bytes, moved.raw() + offset * bytes);
  const Variable x = Variable::leaf(to_device(moved, device).slice(offset, count).reshape(shape));
  Parameter weight{.name = "w", .shape = {16, 3, 3, 16}, .id = 0};
  weight.value = to_device(rounded_to(random_tensor(weight.shape, DType::kF32, 2), dtype), device);
  weight.grad =
      Tensor::empty(test_memory(device), weight.shape, wide_of(dtype), MemoryClass::kGradients);
  TestContext test(device);
  const Variable y = conv2d(test.context, x, weight, 2, 1);
  const Tensor dy = rounded_to(random_tensor(y.shape(), DType::kF32, 3), dtype);
  Results results{.y = values_of(y.value()), .dx = {}, .dw = {}};
  test.tape.backward(test.context, y, to_device(dy, device));
  results.dx = values_of(x.slot()->grad);
  results.dw = values_of(weight.grad);
  return results;
}

// On a GPU, memory that is not aligned to 16 bytes is read element by element, in the same order.
TEST(Conv2dDevices, SameBitsEveryTimeAndForEveryAlignment) {
  for_each_device([](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      const Results once = run_on(device, dtype, 0);
      EXPECT_TRUE(once == run_on(device, dtype, 0)) << name_of(dtype);
      EXPECT_TRUE(once == run_on(device, dtype, 1)) << name_of(dtype);
    }
  });
}

TEST(Conv2d, ErrorsNameWhatDoesNotFit) {
  Parameter weight{.name = "stem.weight", .shape = {4, 5, 5, 3}};
  bind_parameters(std::vector<Parameter*>{&weight}, DType::kF32);
  TestContext test;
  const auto message = [&](Shape shape) {
    try {
      conv2d(test.context, Variable(random_tensor(shape, DType::kF32, 1)), weight, 1, 0);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message({1, 8, 8, 4}).find("stem.weight"), std::string::npos);
  EXPECT_NE(message({1, 4, 8, 3}).find("does not fit"), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing

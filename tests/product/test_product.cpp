#include <omp.h>

#include <cmath>
#include <thread>

#include "layers/activation/activation.h"
#include "src/device/cuda.h"
#include "src/product/product.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

struct Sizes {
  int64_t m, n, k;
};

// One row or column, odd remainders, exact tiles, several blocks in each direction, depth 0; enough
// work for several threads, divided by rows and by columns.
const std::vector<Sizes> kSizes = {
    {1, 1, 1},    {1, 70, 33},  {70, 1, 33},   {14, 32, 16}, {15, 33, 17},  {3, 5, 1100},
    {300, 65, 7}, {29, 800, 9}, {128, 96, 65}, {5, 6, 0},    {20, 700, 50}, {700, 20, 50},
};

struct Call {
  Sizes sizes;
  bool a_flipped = false, b_flipped = false;
  double alpha = 1, beta = 0;
  bool with_bias = false;
  int64_t shift = 0;  // elements from an aligned address to the start of each operand
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

template <class C>
Tensor multiplied(Device device, const Call& call, const Matrix& a, const Matrix& b,
                  const Tensor& bias, const Matrix& c) {
  const auto there = [&](const Tensor& host) {
    const Tensor all = to_device(host, device);
    return all.slice(call.shift, all.elements() - call.shift);
  };
  const Tensor c_there = to_device(c.all, device);
  multiply(test_stream(device),
           {.m = call.sizes.m,
            .n = call.sizes.n,
            .k = call.sizes.k,
            .a = {.data = there(a.all), .stride = a.stride, .transposed = call.a_flipped},
            .b = {.data = there(b.all), .stride = b.stride, .transposed = call.b_flipped},
            .d = {.data = c_there.slice(call.shift, c_there.elements() - call.shift),
                  .stride = c.stride},
            .alpha = call.alpha,
            .beta = call.beta,
            .bias = call.with_bias ? there(bias) : Tensor()});
  return to_host(c_there);
}

// cuBLASLt may round to 16 bits before it adds a bias (an H100 does where rows are not aligned).
bool rounds_before_bias([[maybe_unused]] Device device) {
  if constexpr (kHasCuda) {
    return device == Device::kCuda && cuda::device_name() != "emulated GPU";
  }
  return false;
}

// Compares the kernel with the definition in f64. A sum of k products of normal numbers is off by
// at most k roundings of sums around sqrt(k), and the result by one rounding to C's type.
template <class T, class C>
void check(Device device, const Call& call) {
  const auto& [m, n, k] = call.sizes;
  SCOPED_TRACE(str(name_of(dtype_of<T>), " into ", name_of(dtype_of<C>), ", alpha ", call.alpha,
                   ", beta ", call.beta, call.with_bias ? ", with bias" : ""));
  const bool a_flipped = call.a_flipped, b_flipped = call.b_flipped;
  const Matrix a(a_flipped ? k : m, a_flipped ? m : k, dtype_of<T>, 1, call.shift);
  const Matrix b(b_flipped ? n : k, b_flipped ? k : n, dtype_of<T>, 2, call.shift);
  const Matrix bias(1, n, dtype_of<T>, 3, call.shift);
  Matrix c(m, n, dtype_of<C>, 4, call.shift);
  if (call.beta == 0) {
    for (int64_t i = 0; i < m; ++i) {
      std::fill_n(c.all.data<C>() + call.shift + i * c.stride, n, C(NAN));
    }
  }
  const std::vector<double> result = values_of(multiplied<C>(device, call, a, b, bias.all, c));
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
    for (int64_t p = 0; p < k; ++p) {
      expected += call.alpha * (a_flipped ? a(p, i) : a(i, p)) * (b_flipped ? b(j, p) : b(p, j));
    }
    double rounded = call.with_bias && rounds_before_bias(device) ? std::abs(expected) : 0;
    expected += call.with_bias ? bias(0, j) : 0;
    rounded += std::abs(expected);
    ASSERT_NEAR(result[at], expected, tolerance + rounding * (1 + rounding) * rounded)
        << i << ", " << j;
  }
}

void for_each_call(const std::function<void(const Call&)>& body) {
  for (const Sizes& s : kSizes) {
    for (bool a_flipped : {false, true}) {
      for (bool b_flipped : {false, true}) {
        SCOPED_TRACE(
            str(s.m, " x ", s.n, " x ", s.k, a_flipped ? ", A^T" : "", b_flipped ? ", B^T" : ""));
        body({.sizes = s, .a_flipped = a_flipped, .b_flipped = b_flipped});
      }
    }
  }
}

// For a type T: plain products, and with what can be added.
template <class T>
void check_all(Device device, Call call) {
  for (const double beta : {0.0, 1.0}) {
    for (const bool with_bias : {false, true}) {
      call.alpha = 1 - beta / 2;
      call.beta = beta;
      call.with_bias = with_bias;
      check<T, T>(device, call);
    }
  }
}

TEST(Product, MatchesTheDefinition) {
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

// As for gradients of 16-bit weights: C is f32 and accumulates over calls.
TEST(Product, SixteenBitProductsIntoF32) {
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

// The same sizes at every alignment: a kernel that was chosen for one alignment must not be used
// for another. This is a suite of its own, because a fault in a library's kernel would end all
// further work of the process on the GPU.
TEST(ProductMisaligned, OperandsMayBeginAnywhere) {
  for_each_device([](Device device) {
    for (int64_t shift : {0, 1, 2, 3, 4, 8}) {
      SCOPED_TRACE(str("shifted by ", shift));
      const Call call{.sizes = {24, 40, 16}, .b_flipped = true, .shift = shift};
      check_all<float>(device, call);
      check_all<Bf16>(device, call);
      check_all<Fp16>(device, call);
      check<Bf16, float>(device, call);
    }
  });
}

TEST(Product, EmptyResultsAreLeftAlone) {
  for_each_device([](Device device) {
    for (const Sizes& sizes : {Sizes{0, 5, 3}, Sizes{5, 0, 3}, Sizes{0, 0, 0}}) {
      check_all<float>(device, {.sizes = sizes});
      check_all<Bf16>(device, {.sizes = sizes});
    }
  });
}

// An epilogue gives the bits of separate passes: the product with its bias is rounded before it.
TEST(Product, EpiloguesHaveTheBitsOfSeparatePasses) {
  for_each_device([](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16, DType::kF64}) {
      for (const Sizes& sizes : {Sizes{5, 7, 3}, {130, 96, 65}, {6, 8, 0}}) {
        const int64_t m = sizes.m, n = sizes.n, k = sizes.k;
        SCOPED_TRACE(str(name_of(device), ", ", name_of(dtype), ", ", m, " x ", n, " x ", k));
        if (dtype == DType::kF64 && device == Device::kCuda) {
          continue;
        }
        TestContext test(device);
        const auto random = [&](Shape shape, uint64_t seed) {
          return to_device(rounded_to(random_tensor(shape, DType::kF32, seed), dtype), device);
        };
        const auto empty = [&] { return unwritten({m, n}, dtype, device); };
        const Tensor x = random({m, n}, 4);
        Product plain{.m = m,
                      .n = n,
                      .k = k,
                      .a = {.data = random({m, k}, 1)},
                      .b = {.data = random({n, k}, 2), .transposed = true},
                      .d = {.data = empty()},
                      .bias = random({n}, 3)};
        multiply(test.stream, plain);

        Product with_gelu = plain;
        with_gelu.d.data = empty();
        with_gelu.epilogue = Epilogue::kGelu;
        with_gelu.gelu_input = empty();
        multiply(test.stream, with_gelu);
        const Variable values = gelu(test.context, Variable(plain.d.data));
        EXPECT_EQ(values_of(with_gelu.gelu_input), values_of(plain.d.data));
        EXPECT_EQ(values_of(with_gelu.d.data), values_of(values.value()));

        Product with_gradient = plain;
        with_gradient.d.data = empty();
        with_gradient.epilogue = Epilogue::kGeluGradient;
        with_gradient.gelu_input = x;
        multiply(test.stream, with_gradient);
        const Variable input = Variable::leaf(x);
        test.tape.backward(test.context, gelu(test.context, input), plain.d.data);
        EXPECT_EQ(values_of(with_gradient.d.data), values_of(input.slot()->grad));
      }
    }
  });
}

// The clock of a dry stream counts each product, and a call for each pass.
TEST(Product, SaysItsWork) {
  Stream stream = Stream::dry(Device::kCpu, {});
  Memory memory(stream);
  const auto matrix = [&](Shape shape) {
    return Tensor::empty(memory, shape, DType::kBf16, MemoryClass::kData);
  };
  Product product{.m = 3,
                  .n = 5,
                  .k = 7,
                  .a = {.data = matrix({3, 7})},
                  .b = {.data = matrix({7, 5})},
                  .d = {.data = matrix({3, 5})}};
  multiply(stream, product);
  EXPECT_EQ(stream.clock().work.flops, 2 * 3 * 5 * 7);
  EXPECT_EQ(stream.clock().work.bytes, 2 * (21 + 35 + 15));
  EXPECT_EQ(stream.clock().calls, 1);
  product.epilogue = Epilogue::kGelu;
  product.gelu_input = matrix({3, 5});
  multiply(stream, product);
  EXPECT_EQ(stream.clock().work.flops, 2 * 2 * 3 * 5 * 7);
  EXPECT_EQ(stream.clock().work.bytes, 2 * (2 * (21 + 35 + 15) + 2 * 15));  // and a pass for GELU
  EXPECT_EQ(stream.clock().calls, 3);
}

// A request that cannot be met is an error, never ignored.
TEST(Product, WhatCannotBeComputedIsAnError) {
  for_each_device([](Device device) {
    const auto matrix = [&](Shape shape, DType dtype) {
      return to_device(rounded_to(random_tensor(shape, DType::kF32, 1), dtype), device);
    };
    const auto in_bf16 = [&](Shape shape) { return matrix(shape, DType::kBf16); };
    const Product good{.m = 2,
                       .n = 3,
                       .k = 4,
                       .a = {.data = in_bf16({2, 4})},
                       .b = {.data = in_bf16({4, 3})},
                       .d = {.data = in_bf16({2, 3})}};
    multiply(test_stream(device), good);
    const auto expect_error = [&](const std::string& text, auto change) {
      Product bad = good;
      change(bad);
      try {
        multiply(test_stream(device), bad);
        FAIL() << "no error: " << text;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      }
    };
    const Tensor f32 = matrix({2, 3}, DType::kF32);
    expect_error("one type", [&](Product& p) { p.a.data = matrix({2, 4}, DType::kFp16); });
    expect_error("type of A and B, or f32", [&](Product& p) {
      p.d.data = matrix({2, 3}, DType::kFp16);
    });
    expect_error("FP8", [&](Product& p) { p.b.scale = f32; });
    expect_error("FP8", [&](Product& p) { p.d.scale = f32; });
    expect_error("transposed", [&](Product& p) { p.d.transposed = true; });
    expect_error("larger than its tensor", [&](Product& p) { p.d.stride = 4; });
    expect_error("larger than its tensor", [&](Product& p) { p.m = 3; });
    expect_error("n elements", [&](Product& p) { p.bias = in_bf16({2}); });
    expect_error("n elements", [&](Product& p) {
      p.bias = in_bf16({3});
      p.d.data = f32;
    });
    expect_error("D's type", [&](Product& p) { p.epilogue = Epilogue::kGelu; });
    expect_error("beta = 0", [&](Product& p) {
      p.epilogue = Epilogue::kGeluGradient;
      p.gelu_input = in_bf16({2, 3});
      p.beta = 1;
    });
  });
}

TEST(Product, ThreadsMultiplyAtOnceOnTheirOwnStreams) {
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
          multiply(stream, {.m = n,
                            .n = n,
                            .k = n,
                            .a = {.data = a},
                            .b = {.data = a},
                            .d = {.data = c},
                            .beta = 1});
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

// The same bits with any number of threads, and for some rows and columns alone, at the ends of
// tiles and blocks.
TEST(Product, BitsDependOnlyOnTheRowAndTheColumn) {
  const int64_t m = 700, n = 1100, k = 900;
  const Tensor b = random_tensor({n, k}, DType::kF32, 2);
  for (bool transposed : {false, true}) {
    const Tensor a = random_tensor({transposed ? k : m, transposed ? m : k}, DType::kF32, 1);
    const auto product = [&](int threads, int64_t row, int64_t rows, int64_t column,
                             int64_t columns) {
      omp_set_num_threads(threads);
      const Tensor c = random_tensor({m, n}, DType::kF32, 3);  // to be added to
      const int64_t first = transposed ? row : row * k;
      multiply(test_stream(),
               {.m = rows,
                .n = columns,
                .k = k,
                .a = {.data = a.slice(first, m * k - first),
                      .stride = transposed ? m : k,
                      .transposed = transposed},
                .b = {.data = b.slice(column * k, columns * k), .stride = k, .transposed = true},
                .d = {.data = c.slice(row * n + column, (m - row) * n - column), .stride = n},
                .alpha = 0.3,
                .beta = 0.7});
      omp_set_num_threads(omp_get_num_procs());
      return values_of(c);
    };
    const std::vector<double> whole = product(1, 0, m, 0, n);
    for (int threads : {2, 3}) {
      EXPECT_EQ(product(threads, 0, m, 0, n), whole) << threads;
    }
    struct Part {
      int64_t row, rows, column, columns;
    };
    for (const Part& part : {Part{0, 1, 0, n},
                             {m - 1, 1, 3, 5},
                             {13, 9, 31, 34},
                             {1, 600, 512, 577},
                             {300, 400, 1, n - 1}}) {
      const std::vector<double> some = product(1, part.row, part.rows, part.column, part.columns);
      for (int64_t i = part.row; i < part.row + part.rows; ++i) {
        for (int64_t j = part.column; j < part.column + part.columns; ++j) {
          const auto at = static_cast<size_t>(i * n + j);
          ASSERT_EQ(some[at], whole[at]) << i << ", " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::testing

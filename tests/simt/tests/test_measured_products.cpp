// Measured products against a cuBLASLt that refuses algorithms, takes its time, fuses epilogues and
// errs.
#include <cmath>

#include "layers/linear/linear.h"
#include "src/kernels/activation_functions.h"
#include "src/product/gemm.h"
#include "src/product/measure.h"
#include "tests/simt/libraries/cublaslt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

class MeasuredProducts : public ::testing::Test {
 protected:
  Stream& stream = test_stream(Device::kCuda);
  std::vector<std::string> warnings;

  void TearDown() override {
    use_choices(nullptr);
    simt::cublas_lt() = {};
  }

  static Tensor random(const Shape& shape, DType dtype, uint64_t seed) {
    return to_device(rounded_to(random_tensor(shape, DType::kF32, seed), dtype), Device::kCuda);
  }
  // A B^T + bias. `m` makes the product a new one, so that no plan exists for it.
  static Product product(int64_t m, DType dtype, Epilogue epilogue = Epilogue::kNone,
                         bool has_bias = true) {
    constexpr int64_t n = 24, k = 70;
    Product p{.m = m,
              .n = n,
              .k = k,
              .a = {.data = random({m, k}, dtype, 1)},
              .b = {.data = random({n, k}, dtype, 2), .transposed = true},
              .d = {.data = unwritten({m, n}, dtype, Device::kCuda)},
              .epilogue = epilogue};
    p.bias = has_bias ? random({n}, dtype, 3) : Tensor();
    p.gelu_input = epilogue == Epilogue::kNone   ? Tensor()
                   : epilogue == Epilogue::kGelu ? unwritten({m, n}, dtype, Device::kCuda)
                                                 : random({m, n}, dtype, 4);
    return p;
  }
  std::vector<double> result(const Product& p) {
    multiply(stream, p);
    stream.synchronize();
    return values_of(p.d.data);
  }
  // What multiply() wrote to stderr.
  std::string said(const Product& p) {
    ::testing::internal::CaptureStderr();
    multiply(stream, p);
    stream.synchronize();
    return ::testing::internal::GetCapturedStderr();
  }
  static ProductSet products_of(const Product& p) {
    return {{ProductKey::of(p), Alignments::of(p)}};
  }
  // Lines that it warns with are added to `warnings`.
  KernelChoices measured(const ProductSet& products) {
    return measure_products(stream, products,
                            [this](const std::string& line) { warnings.push_back(line); });
  }
  KernelChoices measured(const Product& p) { return measured(products_of(p)); }
  static void use(const KernelChoices& choices) {
    use_choices(std::make_shared<const KernelChoices>(choices));
  }
  // KernelChoices in which this product is fused.
  KernelChoices fusing(const Product& p) {
    simt::cublas_lt().seconds = [](int, cublasLtEpilogue_t epilogue) {
      return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS ? 100 : 0;
    };
    simt::cublas_lt().algorithms = 1;
    KernelChoices choices = measured(p);
    simt::cublas_lt() = {};
    EXPECT_TRUE(choices.products.at(ProductKey::of(p)).is_fused);
    return choices;
  }
};

TEST_F(MeasuredProducts, RefusedAlgorithmsArePassedOverAndNotTriedAgain) {
  const Product p = product(3, DType::kF32);
  int asked = 0;
  simt::cublas_lt().answer = [&](int algorithm, cublasLtEpilogue_t) {
    ++asked;
    return algorithm == 0   ? CUBLAS_STATUS_NOT_SUPPORTED
           : algorithm == 1 ? CUBLAS_STATUS_INVALID_VALUE
                            : CUBLAS_STATUS_SUCCESS;
  };
  EXPECT_EQ(said(p), "");
  EXPECT_EQ(simt::cublas_lt().last_used, 2);
  EXPECT_EQ(asked, 3);
  result(p);
  EXPECT_EQ(asked, 4);
}

TEST_F(MeasuredProducts, OtherFailuresAreErrors) {
  simt::cublas_lt().answer = [](int, cublasLtEpilogue_t) { return CUBLAS_STATUS_EXECUTION_FAILED; };
  EXPECT_THROW(multiply(stream, product(4, DType::kF32)), Error);
}

// Its numbers are tested by simt.refused_products.
TEST_F(MeasuredProducts, TheLastResortSaysSoOnce) {
  const Product p = product(5, DType::kBf16);
  simt::cublas_lt().answer = [](int, cublasLtEpilogue_t) { return CUBLAS_STATUS_NOT_SUPPORTED; };
  const std::string line = said(p);
  EXPECT_NE(line.find("a slow kernel takes its place, for a product of bf16 [5, 70]"),
            std::string::npos)
      << line;
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  EXPECT_EQ(said(p), "");
  simt::cublas_lt() = {.algorithms = 0};  // nor is there a suggestion
  EXPECT_EQ(std::ranges::count(said(product(6, DType::kBf16)), '\n'), 1);
}

// The kernel's own epilogues, which a choice may ask for, have the bits of separate passes. A sum
// in another order differs, so all products here are the kernel's.
TEST_F(MeasuredProducts, TheLastResortHasEveryEpilogue) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
    for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kGeluGradient}) {
      SCOPED_TRACE(str(name_of(dtype), ", epilogue ", static_cast<int>(epilogue)));
      TearDown();
      const Product p = product(7, dtype, epilogue, epilogue == Epilogue::kGelu);
      const KernelChoices choices = fusing(p);
      simt::cublas_lt().answer = [](int, cublasLtEpilogue_t) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
      };
      const std::vector<double> separate = result(p), input = values_of(p.gelu_input);
      use(choices);
      EXPECT_NE(said(p), "");
      EXPECT_EQ(values_of(p.d.data), separate);
      EXPECT_EQ(values_of(p.gelu_input), input);
    }
  }
}

TEST_F(MeasuredProducts, TheFastestAlgorithmIsKeptAndUsed) {
  const Product p = product(70, DType::kF32);
  const std::vector<double> first = result(p);
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 2 ? 0 : 100;
  };
  simt::cublas_lt().answer = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  };
  const KernelChoices choices = measured(p);
  simt::cublas_lt() = {};
  EXPECT_EQ(choices.products.size(), 2u);  // with the bias, and without
  const ProductChoice& choice = choices.products.at(ProductKey::of(p));
  EXPECT_LT(choice.seconds, choice.first_seconds);
  use(choices);
  const std::vector<double> timed = result(p);
  EXPECT_EQ(simt::cublas_lt().last_used, 2);
  EXPECT_NE(timed, first);
  use_choices(nullptr);
  EXPECT_EQ(result(p), first);
}

// A choice for aligned operands does not serve misaligned ones.
TEST_F(MeasuredProducts, MisalignedOperandsHaveNoChoice) {
  Product p = product(8, DType::kF32);
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 1 ? 0 : 100;
  };
  use(measured(p));
  simt::cublas_lt() = {};
  const Tensor shifted = random({8 * 70 + 1}, DType::kF32, 1);
  p.a = {.data = shifted.slice(1, 8 * 70), .stride = 70};
  result(p);
  EXPECT_EQ(simt::cublas_lt().last_used, 0);
}

TEST_F(MeasuredProducts, ARefusedChoiceIsReplacedAndNamed) {
  const Product p = product(9, DType::kF32, Epilogue::kNone, false);
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 3 ? 0 : 100;
  };
  use(measured(p));
  simt::cublas_lt() = {.answer = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 3 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }};
  const std::string line = said(p);
  EXPECT_NE(line.find("its first suggestion takes the place"), std::string::npos) << line;
  EXPECT_EQ(simt::cublas_lt().last_used, 0);
}

// The faster of both formulations is chosen, and each comes close to the definition in f64. Where
// the whole is separate, so is the bias before GELU, which leaves no choice to real time. With x
// the product, y = x + bias, u the unit roundoff of D's type and s a bound on the error of an f32
// sum:
//   bias: u |y| + s;   GELU: u |gelu(y)| + 1.13 (u |y| + s);
//   GELU's gradient: u |d| + 1.13 (u |x| + s).
// A bias that is added apart finds x rounded, so that y has another u |x|.
// cuBLASLt's GELU and ours are off by some f32 roundings, which s covers as well.
TEST_F(MeasuredProducts, FormulationsAreChosenByTimeAndAgree) {
  struct Case {
    Epilogue epilogue;
    bool has_bias;
    cublasLtEpilogue_t fused;
  };
  const Case cases[] = {{Epilogue::kNone, true, CUBLASLT_EPILOGUE_BIAS},
                        {Epilogue::kGelu, true, CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
                        {Epilogue::kGelu, false, CUBLASLT_EPILOGUE_GELU_AUX},
                        {Epilogue::kGeluGradient, false, CUBLASLT_EPILOGUE_DGELU}};
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
    const double u = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
    for (const Case& one : cases) {
      for (const bool fused_is_fast : {false, true}) {
        SCOPED_TRACE(str(name_of(dtype), ", epilogue ", one.fused, ", fused ", fused_is_fast));
        const Product p = product(40, dtype, one.epilogue, one.has_bias);
        simt::cublas_lt().seconds = [&](int, cublasLtEpilogue_t epilogue) {
          return epilogue == one.fused                   ? (fused_is_fast ? 0 : 200)
                 : epilogue == CUBLASLT_EPILOGUE_DEFAULT ? (fused_is_fast ? 200 : 0)
                                                         : 100;
        };
        simt::cublas_lt().algorithms = 1;
        const KernelChoices choices = measured(p);
        simt::cublas_lt() = {};
        EXPECT_EQ(choices.products.at(ProductKey::of(p)).is_fused, fused_is_fast);
        use(choices);
        cublasLtEpilogue_t newest{};
        simt::cublas_lt().answer = [&](int, cublasLtEpilogue_t epilogue) {
          newest = epilogue;
          return CUBLAS_STATUS_SUCCESS;
        };
        const std::vector<double> d = result(p);
        EXPECT_EQ(newest == one.fused, fused_is_fast);
        const std::vector<double> a = values_of(p.a.data), b = values_of(p.b.data);
        const std::vector<double> bias = p.bias ? values_of(p.bias) : std::vector<double>(24);
        const std::vector<double> input = p.gelu_input ? values_of(p.gelu_input) : d;
        // 74 roundings of sums around sqrt(74), times 4, as in test_product.cpp.
        const double s = 4 * 74 * std::sqrt(74.0) * 0x1p-24;
        for (int64_t at = 0; at < p.m * p.n; ++at) {
          double x = 0;
          for (int64_t i = 0; i < p.k; ++i) {
            x += a[at / p.n * p.k + i] * b[at % p.n * p.k + i];
          }
          const double y = x + bias[at % p.n];
          const bool is_apart = one.has_bias && !fused_is_fast;
          const double y_error = u * ((is_apart ? std::abs(x) : 0) + std::abs(y) + s) + s;
          if (one.epilogue == Epilogue::kNone) {
            ASSERT_NEAR(d[at], y, y_error);
          } else if (one.epilogue == Epilogue::kGelu) {
            ASSERT_NEAR(input[at], y, y_error);
            const double value = kernels::Gelu::value(y);
            ASSERT_NEAR(d[at], value, u * (std::abs(value) + s) + 1.13 * y_error);
          } else {
            const double slope = kernels::Gelu::slope(input[at]);
            ASSERT_NEAR(d[at], x * slope,
                        u * (std::abs(x * slope) + s) + 1.13 * (u * std::abs(x) + s));
          }
        }
      }
    }
  }
}

// A layer before GELU has a bias, and the layer after it computes the gradient: a pass that
// multiplies by GELU's slope sums the gradient over its rows on its way, and where a choice fuses
// the slope with the product, a pass of its own does. The first weight is the identity, so that the
// gradient of x is that of GELU's input, and its 40 rows are added in f32.
TEST_F(MeasuredProducts, TheBiasBeforeGeluHasItsGradientInBothFormulations) {
  constexpr int64_t kTokens = 40, kWidth = 16;
  const Tensor identity = random_tensor({kWidth, kWidth}, DType::kF32, 1);
  for (int64_t i = 0; i < kWidth * kWidth; ++i) {
    identity.data<float>()[i] = i % (kWidth + 1) == 0 ? 1 : 0;
  }
  for (const bool fused_is_fast : {false, true}) {
    SCOPED_TRACE(fused_is_fast);
    TearDown();
    Parameter first{.name = "first", .shape = {kWidth, kWidth}};
    Parameter bias{.name = "bias", .shape = {kWidth}};
    Parameter second{.name = "second", .shape = {24, kWidth}};
    std::vector<cublasLtEpilogue_t> epilogues;
    const auto backward = [&]() -> std::vector<double> {
      ParamId id = 0;
      for (Parameter* parameter : {&first, &bias, &second}) {
        parameter->id = id++;
        parameter->grad_written = false;
        parameter->value = random(parameter->shape, DType::kBf16, 5);
        parameter->grad = unwritten(parameter->shape, DType::kF32, Device::kCuda);
      }
      first.value = to_device(rounded_to(identity, DType::kBf16), Device::kCuda);
      TestContext test(Device::kCuda);
      const Variable x = Variable::leaf(random({kTokens, kWidth}, DType::kBf16, 1));
      const GeluVariable hidden = linear_gelu(test.context, x, first, &bias);
      const Variable y = linear(test.context, hidden, second, nullptr);
      epilogues.clear();
      test.tape.backward(test.context, y, random({kTokens, 24}, DType::kBf16, 2));
      return values_of(x.slot()->grad);
    };
    simt::cublas_lt().algorithms = 1;
    simt::cublas_lt().seconds = [&](int, cublasLtEpilogue_t epilogue) {
      return (epilogue == CUBLASLT_EPILOGUE_DGELU) == fused_is_fast ? 0 : 100;
    };
    simt::cublas_lt().answer = [&](int, cublasLtEpilogue_t epilogue) {
      epilogues.push_back(epilogue);
      return CUBLAS_STATUS_SUCCESS;
    };
    const ChoiceRecorder recorder;
    backward();
    use(measured(recorder.noted().products));
    const std::vector<double> gradient = backward(), sums = values_of(bias.grad);
    EXPECT_EQ(std::ranges::count(epilogues, CUBLASLT_EPILOGUE_DGELU), fused_is_fast ? 1 : 0);
    for (int64_t column = 0; column < kWidth; ++column) {
      double sum = 0, size = 0;
      for (int64_t row = 0; row < kTokens; ++row) {
        sum += gradient[row * kWidth + column];
        size += std::abs(gradient[row * kWidth + column]);
      }
      EXPECT_NEAR(sums[column], sum, kTokens * 0x1p-24 * size);
    }
  }
}

// Rows of 20 elements, a bias or an input of GELU that is not aligned to 16 bytes.
TEST_F(MeasuredProducts, WhatCuBlasLtCannotFuseIsSeparate) {
  Product p = product(10, DType::kBf16, Epilogue::kGelu);
  p.n = 20;
  p.d.data = unwritten({10, 20}, DType::kBf16, Device::kCuda);
  p.gelu_input = unwritten({10, 20}, DType::kBf16, Device::kCuda);
  EXPECT_FALSE(measured(p).products.at(ProductKey::of(p)).is_fused);
  p = product(10, DType::kBf16);
  p.bias = random({25}, DType::kBf16, 3).slice(1, 24);
  EXPECT_FALSE(measured(p).products.at(ProductKey::of(p)).is_fused);
}

// A suggestion that errs is left out, however fast it is, and the fastest of the others is taken.
TEST_F(MeasuredProducts, WrongSuggestionsAreLeftOutAndNamed) {
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t epilogue) {
    return (epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 200 : 100) - 10 * algorithm;
  };
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
    for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kGelu, Epilogue::kGeluGradient}) {
      SCOPED_TRACE(str(name_of(dtype), ", epilogue ", static_cast<int>(epilogue)));
      warnings.clear();
      const Product p = product(11, dtype, epilogue, false);
      simt::cublas_lt().errs = [](int algorithm) { return algorithm == 3; };
      simt::cublas_lt().answer = [](int algorithm, cublasLtEpilogue_t) {
        return algorithm == 2 ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
      };
      use(measured(p));
      const size_t ways = epilogue == Epilogue::kNone ? 1 : 2;
      ASSERT_EQ(warnings.size(), 2 * ways);
      EXPECT_TRUE(warnings[0].starts_with("suggestion 3 of cuBLASLt fails (")) << warnings[0];
      EXPECT_TRUE(
          warnings[1].starts_with("suggestion 4 of cuBLASLt gives another result than "
                                  "Tandem's kernel, and is left out, for a product of "))
          << warnings[1];
      simt::cublas_lt().errs = nullptr;
      simt::cublas_lt().answer = nullptr;
      result(p);
      EXPECT_EQ(simt::cublas_lt().last_used, 1);
    }
  }
}

// A suggestion that writes nothing does not pass for the run before it.
TEST_F(MeasuredProducts, WhatIsNotWrittenIsNoticed) {
  simt::cublas_lt().idles = [](int algorithm) { return algorithm == 2; };
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 2 ? 0 : 100;
  };
  const Product p = product(15, DType::kF32, Epilogue::kNone, false);
  use(measured(p));
  EXPECT_EQ(warnings.size(), 1u);
  result(p);
  EXPECT_EQ(simt::cublas_lt().last_used, 0);
}

// GELU's input is a result of its own.
TEST_F(MeasuredProducts, AWrongSideResultIsNoticed) {
  simt::cublas_lt().errs_aside = true;
  simt::cublas_lt().seconds = [](int, cublasLtEpilogue_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 100 : 0;
  };
  const Product p = product(12, DType::kBf16, Epilogue::kGelu, false);
  EXPECT_FALSE(measured(p).products.at(ProductKey::of(p)).is_fused);
  EXPECT_EQ(warnings.size(), 4u);
}

TEST_F(MeasuredProducts, ALibraryThatIsNeverRightIsAnError) {
  simt::cublas_lt().errs = [](int) { return true; };
  EXPECT_THROW(measured(product(13, DType::kF32)), Error);
}

// The first one stays if others are only nearly 2 % faster.
TEST_F(MeasuredProducts, ALittleFasterIsNotWorthIt) {
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 0 ? 100 : 99;
  };
  const Product p = product(14, DType::kF32, Epilogue::kNone, false);
  use(measured(p));
  result(p);
  EXPECT_EQ(simt::cublas_lt().last_used, 0);
}

}  // namespace
}  // namespace tandem::testing

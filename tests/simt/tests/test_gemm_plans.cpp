// Plans of products against a cuBLASLt that refuses algorithms, takes its time, and fuses
// epilogues.
#include <cmath>

#include "layers/linear/linear.h"
#include "src/kernels/activation_functions.h"
#include "src/product/gemm.h"
#include "src/product/plan_table.h"
#include "src/product/tune.h"
#include "tests/simt/libraries/cublaslt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

class GemmPlans : public ::testing::Test {
 protected:
  Stream& stream = test_stream(Device::kCuda);

  void TearDown() override {
    use_plans(nullptr);
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
  PlanTable tuned(const Product& p) {
    return tune_products(stream, products_of(p), [](const ProductKey&, const PlanTable::Row*) {});
  }
  void use(const PlanTable& table) { use_plans(std::make_shared<const PlanTable>(table)); }
  // A table in which this product has a fused plan.
  PlanTable fusing(const Product& p) {
    simt::cublas_lt().seconds = [](int, cublasLtEpilogue_t epilogue) {
      return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS ? 100 : 0;
    };
    simt::cublas_lt().algorithms = 1;
    PlanTable table = tuned(p);
    simt::cublas_lt() = {};
    EXPECT_TRUE(table.rows.at(ProductKey::of(p)).is_fused);
    return table;
  }
};

TEST_F(GemmPlans, RefusedAlgorithmsArePassedOverAndNotTriedAgain) {
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

TEST_F(GemmPlans, OtherFailuresAreErrors) {
  simt::cublas_lt().answer = [](int, cublasLtEpilogue_t) { return CUBLAS_STATUS_EXECUTION_FAILED; };
  EXPECT_THROW(multiply(stream, product(4, DType::kF32)), Error);
}

// Its numbers are tested by simt.refused_products.
TEST_F(GemmPlans, TheLastResortSaysSoOnce) {
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

// The kernel's own epilogues, which a table asks for, have the bits of separate passes. A sum in
// another order differs, so all products here are the kernel's.
TEST_F(GemmPlans, TheLastResortHasEveryEpilogue) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
    for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kGeluGradient}) {
      SCOPED_TRACE(str(name_of(dtype), ", epilogue ", static_cast<int>(epilogue)));
      TearDown();
      const Product p = product(7, dtype, epilogue, epilogue == Epilogue::kGelu);
      const PlanTable table = fusing(p);
      simt::cublas_lt().answer = [](int, cublasLtEpilogue_t) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
      };
      const std::vector<double> separate = result(p), input = values_of(p.gelu_input);
      use(table);
      EXPECT_NE(said(p), "");
      EXPECT_EQ(values_of(p.d.data), separate);
      EXPECT_EQ(values_of(p.gelu_input), input);
    }
  }
}

TEST_F(GemmPlans, TheFastestAlgorithmIsKeptAndUsed) {
  const Product p = product(70, DType::kF32);
  const std::vector<double> first = result(p);
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 2 ? 0 : 100;
  };
  simt::cublas_lt().answer = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  };
  const PlanTable table = tuned(p);
  simt::cublas_lt() = {};
  EXPECT_EQ(table.rows.size(), 2u);  // with the bias, and without
  const PlanTable::Row& row = table.rows.at(ProductKey::of(p));
  EXPECT_EQ(row.candidates, 3);
  EXPECT_LT(row.seconds, row.first_seconds);
  use(table);
  const std::vector<double> timed = result(p);
  EXPECT_EQ(simt::cublas_lt().last_used, 2);
  EXPECT_NE(timed, first);
  // Read from its text, the table gives the same bits, also at better aligned addresses.
  const std::string text = table.text();
  const PlanTable read = PlanTable::from_text(text, "plans.txt");
  EXPECT_EQ(read.text(), text);
  use(read);
  EXPECT_EQ(result(p), timed);
  EXPECT_EQ(simt::cublas_lt().last_used, 2);
  use_plans(nullptr);
  EXPECT_EQ(result(p), first);
}

// A row for aligned operands does not serve misaligned ones.
TEST_F(GemmPlans, MisalignedOperandsDoNotUseTheTable) {
  Product p = product(8, DType::kF32);
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 1 ? 0 : 100;
  };
  use(tuned(p));
  simt::cublas_lt() = {};
  const Tensor shifted = random({8 * 70 + 1}, DType::kF32, 1);
  p.a = {.data = shifted.slice(1, 8 * 70), .stride = 70};
  result(p);
  EXPECT_EQ(simt::cublas_lt().last_used, 0);
}

TEST_F(GemmPlans, ARefusedPlanOfATableIsReplacedAndNamed) {
  const Product p = product(9, DType::kF32, Epilogue::kNone, false);
  simt::cublas_lt().seconds = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 3 ? 0 : 100;
  };
  use(tuned(p));
  simt::cublas_lt() = {.answer = [](int algorithm, cublasLtEpilogue_t) {
    return algorithm == 3 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }};
  const std::string line = said(p);
  EXPECT_NE(line.find("its own suggestion takes the place"), std::string::npos) << line;
  EXPECT_EQ(simt::cublas_lt().last_used, 0);
}

// The faster of both formulations is chosen, and each comes close to the definition in f64. With x
// the product, u the unit roundoff of D's type and s a bound on the error of an f32 sum:
//   bias: u (|x| + |x + bias|) + s;   GELU: u |gelu(x)| + 1.13 (u |x| + s);
//   GELU's gradient: u |d| + (u |x| + s) |gelu'|.
// cuBLASLt's GELU and ours are off by some f32 roundings, which s covers as well.
TEST_F(GemmPlans, FormulationsAreChosenByTimeAndAgree) {
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
          return (epilogue == one.fused) == fused_is_fast ? 0 : 100;
        };
        simt::cublas_lt().algorithms = 1;
        const PlanTable table = tuned(p);
        simt::cublas_lt() = {};
        EXPECT_EQ(table.rows.at(ProductKey::of(p)).is_fused, fused_is_fast);
        use(table);
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
          const double sum = x + bias[at % p.n];
          if (one.epilogue == Epilogue::kNone) {
            ASSERT_NEAR(d[at], sum, u * (std::abs(x) + std::abs(sum) + s) + s);
          } else if (one.epilogue == Epilogue::kGelu) {
            ASSERT_NEAR(input[at], sum, u * std::abs(sum) + s);
            const double y = kernels::Gelu::value(sum);
            ASSERT_NEAR(d[at], y, u * (std::abs(y) + s) + 1.13 * (u * std::abs(sum) + s));
          } else {
            const double slope = kernels::Gelu::slope(input[at]);
            ASSERT_NEAR(d[at], sum * slope,
                        u * (std::abs(sum * slope) + s) + (u * std::abs(sum) + s) * 1.13);
          }
        }
      }
    }
  }
}

// A layer before GELU has a bias, and the layer after it computes the gradient: a pass that
// multiplies by GELU's slope sums the gradient over its rows on its way, and where a table fuses
// the slope with the product, a pass of its own does. The first weight is the identity, so that the
// gradient of x is that of GELU's input, and its 40 rows are added in f32.
TEST_F(GemmPlans, TheBiasBeforeGeluHasItsGradientInBothFormulations) {
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
    simt::cublas_lt().seconds = [&](int, cublasLtEpilogue_t epilogue) {
      return (epilogue == CUBLASLT_EPILOGUE_DGELU) == fused_is_fast ? 0 : 100;
    };
    simt::cublas_lt().answer = [&](int, cublasLtEpilogue_t epilogue) {
      epilogues.push_back(epilogue);
      return CUBLAS_STATUS_SUCCESS;
    };
    const ProductRecorder recorder;
    backward();
    use(tune_products(stream, recorder.products(), [](const ProductKey&, const auto*) {}));
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
TEST_F(GemmPlans, WhatCuBlasLtCannotFuseIsSeparate) {
  Product p = product(10, DType::kBf16, Epilogue::kGelu);
  p.n = 20;
  p.d.data = unwritten({10, 20}, DType::kBf16, Device::kCuda);
  p.gelu_input = unwritten({10, 20}, DType::kBf16, Device::kCuda);
  EXPECT_FALSE(tuned(p).rows.at(ProductKey::of(p)).is_fused);
  p = product(10, DType::kBf16);
  p.bias = random({25}, DType::kBf16, 3).slice(1, 24);
  EXPECT_FALSE(tuned(p).rows.at(ProductKey::of(p)).is_fused);
}

TEST_F(GemmPlans, ATableIsForOneLibraryAndOneGpu) {
  const PlanTable table = tuned(product(3, DType::kF32));
  const auto expect_error = [](const PlanTable& other, const std::string& text) {
    try {
      require_fitting(other, "plans.txt");
      FAIL() << "no error: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  require_fitting(table, "plans.txt");
  PlanTable other = table;
  other.gpu = "NVIDIA A100";
  expect_error(other, "plans.txt: plans for NVIDIA A100, and this is ");
  simt::cublas_lt().version = 140000;
  expect_error(table, "plans for cuBLASLt 130100, and this is cuBLASLt 140000");
}

TEST_F(GemmPlans, WrongTextIsAnErrorWithItsLine) {
  const std::string text = tuned(product(3, DType::kF32)).text();
  const auto expect_error = [&](const std::string& from, const std::string& to,
                                const std::string& said) {
    std::string wrong = text;
    const size_t at = wrong.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    wrong.replace(at, from.size(), to);
    try {
      PlanTable::from_text(wrong, "plans.txt");
      FAIL() << "no error: " << said;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  };
  expect_error("plans 1", "plans 2", "plans.txt:1: no line \"tandem gemm plans 1\"");
  expect_error("\ngpu ", "\n", "plans.txt:3: no line \"gpu \"");
  expect_error("\n3 24 ", "\nthree 24 ", "plans.txt:5: has \"three\" for a number");
  expect_error(" f32 f32 ", " f32 f8 ", "unknown type \"f8\"");
  expect_error(" N T ", " N X ", "unknown word \"X\"");
  expect_error(" 64 64 64 ", " 64 48 64 ", "alignment");
  expect_error(" fused ", " fused", "unknown word \"fused");
  expect_error(text.substr(text.size() - 100), "\n", "plans.txt:6: ");
  const std::string end = text.substr(text.size() - 20, 19);
  expect_error(end + "\n", end + " 1\n", "goes on with \"1\"");
}

// What a stream that only counts is asked for, with the smallest alignments.
TEST(ProductRecorder, NotesEachProductOnce) {
  Stream dry = Stream::dry(Device::kCuda, {});
  Memory memory(dry);
  const auto matrix = [&](int64_t elements) {
    return Tensor::empty(memory, {elements}, DType::kBf16, MemoryClass::kData);
  };
  Product p{.m = 4,
            .n = 8,
            .k = 16,
            .a = {.data = matrix(64), .stride = 16},
            .b = {.data = matrix(136), .stride = 8},
            .d = {.data = matrix(32), .stride = 8}};
  ProductRecorder outer;
  {
    const ProductRecorder recorder;
    multiply(dry, p);
    p.b.data = p.b.data.slice(8, 128);
    multiply(dry, p);
    EXPECT_EQ(recorder.products(), (ProductSet{{ProductKey::of(p), Alignments::of(p)}}));
    EXPECT_EQ(Alignments::of(p).b, 16u);
    p.beta = 1;
    multiply(dry, p);
    EXPECT_EQ(recorder.products().size(), 2u);
  }
  EXPECT_TRUE(outer.products().empty());
}

}  // namespace
}  // namespace tandem::testing

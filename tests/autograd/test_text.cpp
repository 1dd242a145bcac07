// Tensors and tapes as text, as a debugger shows them, and the place that internal errors name.
#include "layers/activation/activation.h"
#include "layers/add/add.h"
#include "layers/linear/linear.h"
#include "src/autograd/block.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

template <class T>
Tensor numbers(const Shape& shape, T first) {
  const Tensor tensor = Tensor::empty(test_memory(), shape, dtype_of<T>, MemoryClass::kData);
  for (T& element : tensor.as<T>()) {
    element = first;
    first = T(first + T(1));
  }
  return tensor;
}

TEST(TensorText, ShowsWhatATensorIsAndItsEnds) {
  for_each_device([](Device device) {
    const std::string on = str(" on ", name_of(device), ": ");
    const auto text = [&](const Tensor& tensor) { return to_device(tensor, device).text(); };
    EXPECT_EQ(text(numbers<float>({2, 3}, 0.5f)), "f32 [2, 3]" + on + "0.5 1.5 2.5 3.5 4.5 5.5");
    EXPECT_EQ(text(numbers<double>({8}, -1.0)), "f64 [8]" + on + "-1 0 1 2 3 4 5 6");
    EXPECT_EQ(text(numbers<Bf16>({3, 3}, Bf16(1.0f))), "bf16 [3, 3]" + on + "1 2 3 4 ... 6 7 8 9");
    EXPECT_EQ(text(numbers<Fp16>({2}, Fp16(1.5f))), "fp16 [2]" + on + "1.5 2.5");
    EXPECT_EQ(text(numbers<int32_t>({100}, -1)), "i32 [100]" + on + "-1 0 1 2 ... 95 96 97 98");
    EXPECT_EQ(text(numbers<int64_t>({1}, int64_t{1} << 40)), "i64 [1]" + on + "1099511627776");
    EXPECT_EQ(text(numbers<uint8_t>({2}, 65)), "u8 [2]" + on + "65 66");
    EXPECT_EQ(text(numbers<float>({10}, 0)).substr(0, 8), "f32 [10]");
    EXPECT_EQ(to_device(numbers<float>({10}, 0), device).slice(7, 2).text(),
              "f32 [2]" + on + "7 8");
  });
}

TEST(TensorText, OfNothing) {
  EXPECT_EQ(Tensor().text(), "no tensor");
  EXPECT_EQ(numbers<float>({0, 3}, 0).text(), "f32 [0, 3] on cpu:");
  Stream stream = Stream::dry(Device::kCuda, {});
  Memory memory(stream);
  EXPECT_EQ(Tensor::empty(memory, {1 << 20}, DType::kBf16, MemoryClass::kData).text(),
            "bf16 [1048576] on cuda: dry");
}

// An op without a backward.
struct Broken final : Op {
  std::string_view name() const override { return "broken"; }
  void backward(Context&, Tensor&) override { fail(code, "no sum"); }
  ExitCode code = ExitCode::kInternal;
};

Variable broken(Context& context, const Variable& x, ExitCode code = ExitCode::kInternal) {
  auto op = std::make_unique<Broken>();
  op->code = code;
  return context.record(x.value(), std::move(op), {x});
}

struct TapeText : ::testing::Test {
  void SetUp() override { bind_parameters(std::vector<Parameter*>{&weight, &bias}, DType::kF32); }
  Variable leaf() { return Variable::leaf(random_tensor({3, 4}, DType::kF32, 1)); }
  using Body = std::function<Variable(Context&, const Variable& x)>;
  Variable block(BlockId id, bool recompute, const Variable& x, const Body& body) {
    test.context.recompute = recompute;
    return run_block(
        test.context, id,
        [body](Context& context, const Flow& in) -> Flow { return {body(context, in[0])}; },
        {x})[0];
  }
  // The message of the Error that `body` throws, from "; in" on.
  template <class F>
  std::string place(F&& body, ExitCode code = ExitCode::kInternal) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      const std::string what = error.what();
      return what.substr(std::min(what.find("; in "), what.size()));
    }
    return "no error";
  }

  Parameter weight{.name = "w", .shape = {4, 4}}, bias{.name = "b", .shape = {4}};
  TestContext test;
  const Body layer = [this](Context& context, const Variable& x) {
    return gelu(context, linear(context, x, weight, &bias));
  };
};

TEST_F(TapeText, ShowsOpsInOrder) {
  EXPECT_EQ(test.tape.text(), "");
  const Variable x = leaf();
  const Variable y = block(0, false, x, layer);
  const Variable z = block(7, true, y, layer);
  const Variable sum = add(test.context, y, linear(test.context, z, weight, nullptr));
  const std::string text =
      "op 0: block_entry, block 0\n"
      "op 1: linear w b -> f32 [3, 4], block 0\n"
      "op 2: gelu -> f32 [3, 4], block 0\n"
      "op 3: block_exit, block 0\n"
      "op 4: segment -> f32 [3, 4], block 7\n"
      "op 5: linear w -> f32 [3, 4]\n"
      "op 6: add -> f32 [3, 4]\n";
  EXPECT_EQ(test.tape.text(), text);
  ::testing::internal::CaptureStderr();
  test.tape.print();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), text);
  test.tape.backward(test.context, sum, 1.0);
  EXPECT_EQ(test.tape.text(), "");
}

TEST_F(TapeText, AnErrorOfBackwardNamesTheOp) {
  bias.grad = Tensor();
  EXPECT_EQ(place([&] { test.tape.backward(test.context, block(2, false, leaf(), layer), 1.0); }),
            "; in backward of op 1: linear w b -> f32 [3, 4], block 2");
}

TEST_F(TapeText, AnErrorOfARecomputedBlockNamesBoth) {
  const Variable y = block(2, true, leaf(), [](Context& context, const Variable& x) {
    return broken(context, gelu(context, x));
  });
  EXPECT_EQ(place([&] { test.tape.backward(test.context, y, 1.0); }),
            "; in backward of op 1: broken -> f32 [3, 4]"
            "; in backward of op 0: segment -> f32 [3, 4], block 2");
}

TEST_F(TapeText, AnErrorOfForwardNamesTheBlockAndTheOpBefore) {
  const auto fails_after_linear = [this](Context& context, const Variable& x) {
    const Variable y = linear(context, x, weight, &bias);
    y.data<double>();
    return y;
  };
  // Where nothing is recorded, only the block is known: when backward runs a block again, and
  // without a tape.
  EXPECT_EQ(place([&] { block(3, true, leaf(), fails_after_linear); }), "; in forward of block 3");
  EXPECT_EQ(place([&] { block(3, false, leaf(), fails_after_linear); }),
            "; in forward of block 3, after op 1: linear w b -> f32 [3, 4], block 3");
  test.context.tape = nullptr;
  EXPECT_EQ(place([&] { block(3, false, leaf(), fails_after_linear); }), "; in forward of block 3");
}

TEST_F(TapeText, OtherErrorsStayAsTheyAre) {
  const Variable y = broken(test.context, leaf(), ExitCode::kNumerical);
  EXPECT_EQ(place([&] { test.tape.backward(test.context, y, 1.0); }, ExitCode::kNumerical), "");
}

}  // namespace
}  // namespace tandem::testing

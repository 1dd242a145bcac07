#include <array>
#include <cmath>

#include "layers/activation/activation.h"
#include "layers/add/add.h"
#include "layers/attention/attention.h"
#include "layers/linear/linear.h"
#include "layers/norm/norm.h"
#include "src/autograd/block.h"
#include "src/kernels/column_sums.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

Parameter make(const char* name, Shape shape) { return Parameter{.name = name, .shape = shape}; }

TEST(Linear, GradientsMatchFiniteDifferences) {
  Parameter weight = make("w", {5, 7}), bias = make("b", {5});
  check_gradients({Shape{2, 3, 7}}, {&weight, &bias},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return linear(context, in[0], weight, &bias);
                  });
}

// Products of one shape share a plan on a GPU, but not a bias.
TEST(Linear, LayersOfOneShapeHaveTheirOwnBiases) {
  Parameter first = make("w1", {16, 16}), first_bias = make("b1", {16});
  Parameter second = make("w2", {16, 16}), second_bias = make("b2", {16});
  check_devices({Shape{3, 16}}, {&first, &first_bias, &second, &second_bias},
                [&](Context& context, const std::vector<Variable>& in) {
                  return linear(context, linear(context, in[0], first, &first_bias), second,
                                &second_bias);
                },
                {.terms = 64, .roundings = 8});
}

TEST(Linear, WithoutBias) {
  Parameter weight = make("w", {3, 4});
  check_gradients({Shape{6, 4}}, {&weight}, [&](Context& context, const std::vector<Variable>& in) {
    return linear(context, in[0], weight, nullptr);
  });
}

// Two uses of one weight add their gradients in place; a third write would be seen as a wrong sum.
TEST(Linear, SharedWeightAccumulates) {
  Parameter weight = make("w", {4, 4});
  check_gradients({Shape{3, 4}}, {&weight}, [&](Context& context, const std::vector<Variable>& in) {
    return linear(context, linear(context, in[0], weight, nullptr), weight, nullptr);
  });
}

TEST(Linear, DevicesAgree) {
  for (const auto& [rows, in, out] : std::vector<std::array<int64_t, 3>>{
           {6, 7, 5}, {1, 1, 1}, {33, 31, 24}, {130, 8, 40}, {67, 96, 257}}) {
    SCOPED_TRACE(str(rows, " x ", in, " x ", out));
    Parameter weight = make("w", {out, in}), bias = make("b", {out});
    check_devices({Shape{rows, in}}, {&weight, &bias},
                  [&](Context& context, const std::vector<Variable>& inputs) {
                    return linear(context, inputs[0], weight, &bias);
                  },
                  {.terms = rows + in + out});
  }
}

// Gradients of parameters are summed in f32, so a second use adds no rounding to 16 bits.
TEST(Linear, DevicesAgreeOnASharedWeight) {
  Parameter weight = make("w", {16, 16}), bias = make("b", {16});
  check_devices({Shape{3, 16}}, {&weight, &bias},
                [&](Context& context, const std::vector<Variable>& in) {
                  return linear(context, linear(context, in[0], weight, &bias), weight, &bias);
                },
                {.terms = 64, .roundings = 8});
}

// Two layers with GELU between them, fused into the products or as separate ops.
struct TwoLayers {
  Parameter fc = make("fc", {12, 8}), fc_bias = make("fc_bias", {12});
  Parameter proj = make("proj", {8, 12}), proj_bias = make("proj_bias", {8});
  std::vector<Parameter*> parameters = {&fc, &fc_bias, &proj, &proj_bias};

  Variable operator()(Context& context, const Variable& x, bool fused) {
    if (fused) {
      return linear(context, linear_gelu(context, x, fc, &fc_bias), proj, &proj_bias);
    }
    const Variable hidden = gelu(context, linear(context, x, fc, &fc_bias));
    return linear(context, hidden, proj, &proj_bias);
  }
};

TEST(LinearGelu, GradientsMatchFiniteDifferences) {
  TwoLayers layers;
  check_gradients({Shape{2, 3, 8}}, layers.parameters,
                  [&](Context& context, const std::vector<Variable>& in) {
                    return layers(context, in[0], true);
                  });
}

// y, then the gradients of x and of the wanted parameters.
std::vector<std::vector<double>> results_of(Device device, DType dtype, bool fused,
                                            const std::vector<bool>& frozen) {
  TwoLayers layers;
  TestContext test(device);
  const auto random = [&](const Shape& shape, uint64_t seed) {
    return to_device(rounded_to(random_tensor(shape, DType::kF32, seed), dtype), device);
  };
  for (size_t i = 0; i < frozen.size(); ++i) {
    Parameter& parameter = *layers.parameters[i];
    parameter.id = static_cast<ParamId>(i);
    parameter.value = random(parameter.shape, i);
    parameter.grad = unwritten(parameter.shape, wide_of(dtype), device);
    parameter.frozen = frozen[i];
  }
  const Variable x = Variable::leaf(random({5, 8}, 10));
  const Variable y = layers(test.context, x, fused);
  std::vector<std::vector<double>> results = {values_of(y.value())};
  test.tape.backward(test.context, y, random({5, 8}, 11));
  results.push_back(values_of(x.slot()->grad));
  for (const Parameter* parameter : layers.parameters) {
    if (parameter->wanted()) {
      results.push_back(values_of(parameter->grad));
    }
  }
  return results;
}

TEST(LinearGelu, HasTheBitsOfSeparateLayers) {
  for_each_device([](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16, DType::kF64}) {
      for (const std::vector<bool>& frozen :
           {std::vector{false, false, false, false}, {true, false, true, false}}) {
        if (device == Device::kCpu || dtype != DType::kF64) {
          SCOPED_TRACE(str(name_of(device), ", ", name_of(dtype)));
          EXPECT_EQ(results_of(device, dtype, true, frozen),
                    results_of(device, dtype, false, frozen));
        }
      }
    }
  });
}

// Compares peak memory: with a tape, in a recomputed block, and without a tape.
TEST(LinearGelu, TakesNoMoreMemoryThanSeparateLayers) {
  enum { kRemembered, kRecomputed, kForgotten };
  const auto peak_bytes = [](int way, bool fused) {
    TwoLayers layers;
    bind_parameters(layers.parameters, DType::kF32);
    TestContext test;
    Memory memory(test.stream);
    Context context{.stream = test.stream,
                    .memory = memory,
                    .tape = way == kForgotten ? nullptr : &test.tape,
                    .recompute = way == kRecomputed};
    const Variable x = Variable::leaf(random_tensor({128, 8}, DType::kF32, 1));
    const auto body = [&](Context& inner, const Flow& input) -> Flow {
      return {layers(inner, input[0], fused)};
    };
    const Variable y = run_block(context, 0, body, {x})[0];
    const int64_t forward = memory.total().peak_bytes;
    if (way != kForgotten) {
      test.tape.backward(context, y, 1.0);
    }
    return std::pair(forward, memory.total().peak_bytes);
  };
  for (int way : {kRemembered, kRecomputed, kForgotten}) {
    EXPECT_EQ(peak_bytes(way, true), peak_bytes(way, false)) << "way " << way;
  }
}

// The product with GELU's slope cannot add to a gradient, as a second use would require.
TEST(LinearGelu, ServesOneLinearLayer) {
  TwoLayers layers;
  bind_parameters(layers.parameters, DType::kF32);
  TestContext test;
  const Variable x = Variable::leaf(random_tensor({3, 8}, DType::kF32, 1));
  const GeluVariable hidden = linear_gelu(test.context, x, layers.fc, &layers.fc_bias);
  const Variable y = add(test.context, linear(test.context, hidden, layers.proj, nullptr),
                         linear(test.context, hidden, layers.proj, nullptr));
  try {
    test.tape.backward(test.context, y, 1.0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("beta = 0"), std::string::npos) << error.what();
  }
}

// The sum over rows that gives a bias its gradient is taken by the norm after it, and by the
// product with GELU's slope. The hidden layer has 100 rows, several chunks on a GPU.
TEST(RowSums, AreTakenByTheNextOp) {
  const int64_t width = 40;
  Parameter fc = make("fc", {24, width}), fc_bias = make("fc_bias", {24});
  Parameter proj = make("proj", {width, 24}), bias = make("bias", {width});
  Parameter gain = make("gain", {width}), shift = make("shift", {width});
  check_devices({Shape{100, width}}, {&fc, &fc_bias, &proj, &bias, &gain, &shift},
                [&](Context& context, const std::vector<Variable>& in) {
                  const GeluVariable hidden = linear_gelu(context, in[0], fc, &fc_bias);
                  Variable branch = linear(context, hidden, proj, &bias);
                  const Normalized both =
                      add_layer_norm(context, in[0], std::move(branch), gain, shift);
                  return add(context, both.sum, both.y);
                },
                {.terms = 100 + 3 * width, .roundings = 16});
}

// Those of the queries, keys and values are taken by attention, where it runs on tensor cores.
TEST(RowSums, AreTakenByAttention) {
  const HeadLayout layout{.heads = 2, .kv_heads = 1, .width = 64};
  Parameter weight = make("qkv", {layout.row(), 24}), bias = make("bias", {layout.row()});
  check_devices({Shape{2, 70, 24}}, {&weight, &bias},
                [&](Context& context, const std::vector<Variable>& in) {
                  return attention(context, linear(context, in[0], weight, &bias), layout);
                },
                {.terms = 2 * (70 + 64) + 24, .roundings = 16, .scale = 0.25});
}

// A later contribution to the gradient makes the norm's sums wrong: they are not used.
TEST(RowSums, EndWithTheirGradient) {
  Parameter weight = make("weight", {16, 16}), bias = make("bias", {16});
  Parameter gain = make("gain", {16}), shift = make("shift", {16});
  check_devices({Shape{50, 16}}, {&weight, &bias, &gain, &shift},
                [&](Context& context, const std::vector<Variable>& in) {
                  const Variable branch = linear(context, in[0], weight, &bias);
                  const Variable other = add(context, in[0], branch);
                  const Normalized both = add_layer_norm(context, in[0], branch, gain, shift);
                  return add(context, both.y, other);
                },
                {.terms = 50 + 3 * 16, .roundings = 16});
}

// Several tiles of columns and several chunks of rows on a GPU; columns that are whole packs of 16
// bytes or not; with and without adding to old values.
TEST(SumRows, DevicesAgree) {
  for (const auto& shape : std::vector<std::array<int64_t, 2>>{
           {1, 1}, {2, 257}, {9000, 1}, {3000, 3}, {700, 12}, {600, 31}, {200, 64}, {65, 520}}) {
    const int64_t rows = shape[0], columns = shape[1];
    SCOPED_TRACE(str(rows, " x ", columns));
    const Tensor dy = random_tensor({rows, columns}, DType::kF32, 1);
    const Tensor before = random_tensor({columns}, DType::kF32, 2);
    for_each_device([&](Device device) {
      for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
        for (float beta : {0.0f, 1.0f}) {
          const TestContext test(device);
          const Tensor rounded = to_device(rounded_to(dy, dtype), device);
          const Tensor dbias = to_device(before, device);
          on_device(test.stream, {}, dtype, [&]<class T>(auto tag) {
            if constexpr (!std::is_same_v<T, double>) {
              const int64_t chunks = kernels::row_chunks(tag, rows, columns);
              const Tensor partial = test.context.workspace({chunks, columns}, DType::kF32);
              kernels::sum_rows(tag, rounded.data<T>(), partial.data<float>(), rows, columns);
              const PartialRows<float> sum{partial.data<float>(), dbias.data<float>(), chunks,
                                           columns, beta};
              kernels::add_partial_rows<float>(tag, {&sum, 1});
            }
          });
          const std::vector<double> terms = values_of(rounded), actual = values_of(dbias);
          for (int64_t j = 0; j < columns; ++j) {
            double sum = beta * before.data<float>()[j], size = std::abs(sum);
            for (int64_t r = 0; r < rows; ++r) {
              sum += terms[r * columns + j];
              size += std::abs(terms[r * columns + j]);
            }
            ASSERT_NEAR(actual[j], sum, static_cast<double>(rows + 1) * 0x1p-24 * size) << j;
          }
        }
      }
    });
  }
}

TEST(Linear, WrongWidthNamesTheLayer) {
  Parameter weight = make("head.weight", {4, 4});
  bind_parameters(std::vector<Parameter*>{&weight}, DType::kF32);
  TestContext test;
  const Variable x(random_tensor({3, 5}, DType::kF32, 1));
  try {
    linear(test.context, x, weight, nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("head.weight"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tandem::testing

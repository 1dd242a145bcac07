// Frozen parameters of layers: no gradient is computed for them, and the gradients of the other
// parameters and of the input keep their bits.
#include "layers/batchnorm2d/batchnorm2d.h"
#include "layers/conv2d/conv2d.h"
#include "layers/embedding/embedding.h"
#include "layers/linear/linear.h"
#include "layers/norm/norm.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

using Body = std::function<Variable(Context&, const Variable& x)>;
using Gradients = std::vector<std::vector<double>>;

// The gradients of x and of the parameters whose bit in `frozen` is 0.
Gradients run(Device device, const Shape& shape, std::span<Parameter* const> parameters,
              unsigned frozen, const Body& body) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = *parameters[i];
    parameter.id = static_cast<ParamId>(i);
    parameter.frozen = (frozen >> i & 1) != 0;
    parameter.value = to_device(random_tensor(parameter.shape, DType::kF32, i), device);
    // A frozen parameter has no memory for a gradient; asking for it is an error.
    parameter.grad = parameter.frozen ? Tensor() : unwritten(parameter.shape, DType::kF32, device);
    parameter.grad_written = false;
  }
  TestContext test(device);
  test.context.training = true;
  const Variable x = Variable::leaf(to_device(random_tensor(shape, DType::kF32, 50), device));
  const Variable y = body(test.context, x);
  Gradients gradients;
  if (y.wanted()) {
    test.tape.backward(test.context, y,
                       to_device(random_tensor(y.shape(), DType::kF32, 51), device));
    gradients.push_back(x.slot()->grad ? values_of(x.slot()->grad) : std::vector<double>());
  }
  for (const Parameter* parameter : parameters) {
    EXPECT_EQ(parameter->grad_written, !parameter->frozen) << parameter->name;
    if (!parameter->frozen) {
      gradients.push_back(values_of(parameter->grad));
    }
  }
  return gradients;
}

void expect_same_bits(const Shape& shape, std::vector<Parameter*> parameters, const Body& body) {
  for_each_device([&](Device device) {
    const Gradients all = run(device, shape, parameters, 0, body);
    for (unsigned frozen = 1; frozen < 1u << parameters.size(); ++frozen) {
      SCOPED_TRACE(str("frozen: ", frozen));
      const Gradients some = run(device, shape, parameters, frozen, body);
      if (some.empty()) {
        continue;  // no gradient is wanted, so nothing was differentiated
      }
      Gradients expected = {all[0]};
      for (size_t i = 0; i < parameters.size(); ++i) {
        if ((frozen >> i & 1) == 0) {
          expected.push_back(all[1 + i]);
        }
      }
      EXPECT_EQ(some, expected);
    }
  });
}

TEST(Frozen, Linear) {
  Parameter weight{.name = "weight", .shape = {5, 12}}, bias{.name = "bias", .shape = {5}};
  expect_same_bits({7, 12}, {&weight, &bias}, [&](Context& context, const Variable& x) {
    return linear(context, x, weight, &bias);
  });
}

// Backward needs a layer's input for the gradient of its weight alone.
TEST(Frozen, LinearKeepsNoInput) {
  for (const bool frozen : {false, true}) {
    Parameter weight{.name = "weight", .shape = {5, 12}, .frozen = frozen};
    bind_parameters(std::vector{&weight}, DType::kF32);
    TestContext test;
    const Variable x = Variable::leaf(random_tensor({7, 12}, DType::kF32, 1));
    const Variable y = linear(test.context, x, weight, nullptr);
    EXPECT_TRUE(y.wanted());
    EXPECT_EQ(x.value().unique(), frozen);
  }
}

TEST(Frozen, Adapters) {
  Parameter weight{.name = "weight", .shape = {5, 12}};
  Adapters adapters("layer", {{"layer", {2, 5}}}, 12, {.rank = 4});
  const std::vector<Parameter*> both = adapters.parameters();
  expect_same_bits({7, 12}, {&weight, both[0], both[1]}, [&](Context& context, const Variable& x) {
    return adapters(context, x, linear(context, x, weight, nullptr));
  });
}

TEST(Frozen, Norms) {
  Parameter gain{.name = "gain", .shape = {24}}, bias{.name = "bias", .shape = {24}};
  expect_same_bits({40, 24}, {&gain, &bias}, [&](Context& context, const Variable& x) {
    return layer_norm(context, x, gain, bias);
  });
  expect_same_bits({40, 24}, {&gain},
                   [&](Context& context, const Variable& x) { return rms_norm(context, x, gain); });
}

TEST(Frozen, Convolution) {
  Parameter weight{.name = "weight", .shape = {4, 3, 3, 8}};
  expect_same_bits({2, 6, 6, 8}, {&weight}, [&](Context& context, const Variable& x) {
    return conv2d(context, x, weight, 1, 1);
  });
}

TEST(Frozen, BatchNorm) {
  Parameter gain{.name = "gain", .shape = {8}}, bias{.name = "bias", .shape = {8}};
  RunningStatistics statistics{.name = "bn", .channels = 8};
  expect_same_bits({2, 3, 3, 8}, {&gain, &bias}, [&](Context& context, const Variable& x) {
    statistics.sum =
        to_device(Tensor::zeros(test_memory(), {2, 8}, DType::kF32, MemoryClass::kData),
                  context.stream.device());
    return batchnorm2d(context, x, gain, bias, statistics, {.relu = true});
  });
}

// The input of an embedding has no gradient.
TEST(Frozen, Embedding) {
  Parameter tokens{.name = "tokens", .shape = {9, 16}},
      positions{.name = "positions", .shape = {6, 16}};
  const std::vector<int32_t> ids = {1, 4, 4, 8, 0, 2, 2, 2, 7, 1};
  expect_same_bits({1}, {&tokens, &positions}, [&](Context& context, const Variable&) {
    const Tensor batch = to_device(int_tensor({2, 5}, ids), context.stream.device());
    return embedding(context, batch, tokens, &positions);
  });
}

}  // namespace
}  // namespace tandem::testing

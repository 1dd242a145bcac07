#include "layers/linear.h"
#include "tests/gradcheck.h"

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

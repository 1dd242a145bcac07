#include "tests/support/gradcheck.h"

#include <algorithm>
#include <cmath>

namespace tandem::testing {

namespace {

double dot(const Tensor& a, const Tensor& b) {
  const auto x = a.as<double>(), y = b.as<double>();
  double total = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    total += x[i] * y[i];
  }
  return total;
}

double loss_of(const OpUnderTest& op, const std::vector<Variable>& inputs) {
  TestContext test;
  test.context.recomputing = true;  // no training step: batch statistics must not be observed
  const Variable y = op(test.context, inputs);
  return dot(y.value(), random_tensor(y.shape(), DType::kF64, 77));
}

// The central difference of the loss along `direction`, which changes the memory of `point`.
double central_difference(const OpUnderTest& op, const std::vector<Variable>& inputs,
                          const Tensor& point, const Tensor& direction) {
  constexpr double kStep = 1e-5;
  const std::vector<double> original = values_of(point);
  const auto shifted_loss = [&](double h) {
    for (int64_t i = 0; i < point.elements(); ++i) {
      point.data<double>()[i] = original[i] + h * direction.data<double>()[i];
    }
    return loss_of(op, inputs);
  };
  const double slope = (shifted_loss(kStep) - shifted_loss(-kStep)) / (2 * kStep);
  std::ranges::copy(original, point.data<double>());
  return slope;
}

void expect_slope(const std::string& what, double analytic, double numeric, double tolerance) {
  EXPECT_NEAR(analytic, numeric,
              tolerance * std::max({std::abs(analytic), std::abs(numeric), 1e-2}))
      << what;
}

}  // namespace

void check_gradients(const std::vector<Shape>& input_shapes,
                     const std::vector<Parameter*>& parameters, const OpUnderTest& op, double scale,
                     double tolerance) {
  bind_parameters(parameters, DType::kF64, 100, scale);
  std::vector<Variable> inputs;
  for (size_t i = 0; i < input_shapes.size(); ++i) {
    inputs.push_back(Variable::leaf(random_tensor(input_shapes[i], DType::kF64, 200 + i, scale)));
  }
  TestContext test;
  const Variable y = op(test.context, inputs);
  test.tape.backward(test.context, y, random_tensor(y.shape(), DType::kF64, 77));

  for (uint64_t trial = 0; trial < 3; ++trial) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Tensor direction = random_tensor(inputs[i].shape(), DType::kF64, 300 + 10 * trial + i);
      ASSERT_TRUE(static_cast<bool>(inputs[i].slot()->grad)) << "input " << i << " got no gradient";
      expect_slope("input " + std::to_string(i), dot(inputs[i].slot()->grad, direction),
                   central_difference(op, inputs, inputs[i].value(), direction), tolerance);
    }
    for (Parameter* parameter : parameters) {
      const Tensor direction = random_tensor(
          parameter->shape, DType::kF64, 400 + 10 * trial + static_cast<uint64_t>(parameter->id));
      ASSERT_TRUE(parameter->grad_written) << parameter->name << " got no gradient";
      expect_slope(parameter->name, dot(parameter->grad, direction),
                   central_difference(op, inputs, parameter->value, direction), tolerance);
    }
  }
}

}  // namespace tandem::testing

#include "tests/support/device_check.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"

namespace tandem::testing {

namespace {

struct Outcome {
  std::vector<std::string> names;
  std::vector<std::vector<double>> tensors;  // result, input gradients, parameter gradients
};

double unit_of(DType dtype) {
  return dtype == DType::kBf16 ? 0x1p-8 : (dtype == DType::kFp16 ? 0x1p-11 : 0x1p-24);
}

// Inputs, parameters and the result's gradient have the values of `storage`; the op runs in
// `dtype`.
Outcome run(Device device, DType dtype, DType storage, const std::vector<Shape>& input_shapes,
            const std::vector<Parameter*>& parameters, const OpUnderTest& op, double scale) {
  const auto random = [&](const Shape& shape, uint64_t seed, double spread) {
    const Tensor exact = random_tensor(shape, DType::kF64, seed, spread);
    return to_device(rounded_to(rounded_to(exact, storage), dtype), device);
  };
  ParamId id = 0;
  for (Parameter* parameter : parameters) {
    parameter->id = id++;
    parameter->value = random(parameter->shape, 100 + static_cast<uint64_t>(id), scale);
    parameter->grad = unwritten(parameter->shape, wide_of(dtype), device);
    parameter->grad_written = false;
  }
  std::vector<Variable> inputs;
  for (size_t i = 0; i < input_shapes.size(); ++i) {
    inputs.push_back(Variable::leaf(random(input_shapes[i], 200 + i, scale)));
  }
  TestContext test(device);
  const Variable y = op(test.context, inputs);
  // Losses stay in f32 when what they are computed from is stored in 16 bits.
  const Tensor exact = random_tensor(y.shape(), DType::kF64, 77);
  const Tensor dy = rounded_to(rounded_to(exact, storage), y.dtype());
  Outcome outcome{{"result"}, {values_of(y.value())}};
  test.tape.backward(test.context, y, to_device(dy, device));
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(static_cast<bool>(inputs[i].slot()->grad)) << "input " << i << " has no gradient";
    outcome.names.push_back(str("gradient of input ", i));
    outcome.tensors.push_back(values_of(inputs[i].slot()->grad));
  }
  for (Parameter* parameter : parameters) {
    EXPECT_TRUE(parameter->grad_written) << parameter->name << " got no gradient";
    outcome.names.push_back("gradient of " + parameter->name);
    outcome.tensors.push_back(values_of(parameter->grad));
  }
  return outcome;
}

void expect_near(const std::string& name, const std::vector<double>& actual,
                 const std::vector<double>& expected, double relative) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  double largest = 0;
  for (double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i]), largest * relative)
        << name << ", element " << i << ": " << actual[i] << ", expected " << expected[i];
  }
}

}  // namespace

void check_devices(const std::vector<Shape>& input_shapes,
                   const std::vector<Parameter*>& parameters, const OpUnderTest& op,
                   const DeviceCheck& check) {
  for_each_device([&](Device device) {
    for (DType dtype : check.dtypes) {
      SCOPED_TRACE(name_of(dtype));
      const Outcome expected =
          run(Device::kCpu, DType::kF64, dtype, input_shapes, parameters, op, check.scale);
      const Outcome actual = run(device, dtype, dtype, input_shapes, parameters, op, check.scale);
      const double relative =
          check.roundings * unit_of(dtype) + static_cast<double>(check.terms) * 0x1p-24;
      for (size_t i = 0; i < expected.tensors.size(); ++i) {
        expect_near(expected.names[i], actual.tensors[i], expected.tensors[i], relative);
      }
    }
  });
}

}  // namespace tandem::testing

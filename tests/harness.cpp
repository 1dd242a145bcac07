#include "tests/harness.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "src/core/error.h"

namespace tandem::testing {

void for_each_device(const std::function<void(Device)>& body) {
  const std::vector<Device> devices = available_devices();
  if (const char* wanted = std::getenv("TANDEM_REQUIRE_DEVICES")) {
    for (Device device : {Device::kCpu, Device::kCuda}) {
      const bool required = std::string(wanted).find(name_of(device)) != std::string::npos;
      ASSERT_TRUE(!required || std::ranges::count(devices, device))
          << name_of(device) << " is required and missing";
    }
  }
  for (Device device : devices) {
    SCOPED_TRACE(name_of(device));
    body(device);
  }
}

Memory& test_memory() {
  static Memory memory(Device::kCpu);
  return memory;
}

TestContext::TestContext(Device device)
    : stream(Stream::compute(device)),
      context{.stream = stream,
              .memory = test_memory(),
              .tape = &tape,
              .random = {.seed = 1},
              .training = true} {}

Tensor random_tensor(Shape shape, DType dtype, uint64_t seed, double scale) {
  Parameter source{.name = "test", .shape = shape, .init = Initializer::normal(scale)};
  source.value = Tensor::empty(test_memory(), shape, dtype, MemoryClass::kData);
  initialize(source, seed);
  return source.value;
}

Tensor int_tensor(Shape shape, std::span<const int32_t> values) {
  Tensor tensor = Tensor::empty(test_memory(), shape, DType::kI32, MemoryClass::kData);
  require(static_cast<size_t>(tensor.elements()) == values.size(),
          "int_tensor: wrong number of values");
  std::ranges::copy(values, tensor.data<int32_t>());
  return tensor;
}

void bind_parameters(std::span<Parameter* const> parameters, DType dtype, uint64_t seed,
                     double scale) {
  ParamId id = 0;
  for (Parameter* parameter : parameters) {
    parameter->id = id++;
    parameter->value =
        random_tensor(parameter->shape, dtype, seed + static_cast<uint64_t>(id), scale);
    parameter->grad =
        Tensor::zeros(test_memory(), parameter->shape, dtype, MemoryClass::kGradients);
    parameter->grad_written = false;
  }
}

std::vector<double> values_of(const Tensor& tensor) {
  return on_float(tensor.dtype(), [&]<class T>() {
    const auto span = tensor.as<T>();
    return std::vector<double>(span.begin(), span.end());
  });
}

}  // namespace tandem::testing

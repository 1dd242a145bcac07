#include "tests/support/harness.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "src/core/error.h"
#include "src/device/copy.h"
#include "src/device/dispatch.h"

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

Stream& test_stream(Device device) {
  if (device == Device::kCpu) {
    static Stream cpu = Stream::compute(Device::kCpu);
    return cpu;
  }
  static Stream gpu = Stream::compute(Device::kCuda);
  return gpu;
}

Memory& test_memory(Device device) {
  if (device == Device::kCpu) {
    static Memory cpu(Device::kCpu);
    return cpu;
  }
  static Memory gpu(test_stream(device));
  return gpu;
}

DeviceNumbers::DeviceNumbers(Device device, const StepNumbers& numbers)
    : bytes_(to_device(
          Tensor::of(std::as_bytes(std::span(&numbers, 1)), test_memory(),
                     {static_cast<int64_t>(sizeof numbers)}, DType::kU8, MemoryClass::kData),
          device)) {}

TestContext::TestContext(Device device, const StepNumbers& step_numbers)
    : stream(test_stream(device)),
      numbers(device, step_numbers),
      context{.stream = stream,
              .memory = test_memory(device),
              .tape = &tape,
              .numbers = numbers.get(),
              .training = true} {}

namespace {

// Writes a hash of the elements to the file that TANDEM_TEST_BITS names, if it is set. Tensors of
// bytes may hold structs, whose padding has no defined value.
void record_bits(const Tensor& tensor) {
  const char* path = std::getenv("TANDEM_TEST_BITS");
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (!path || !test || tensor.dtype() == DType::kU8) {
    return;
  }
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (int64_t i = 0; i < tensor.bytes(); ++i) {
    hash = (hash ^ static_cast<uint64_t>(tensor.raw()[i])) * 1099511628211u;
  }
  std::ofstream(path, std::ios::app) << test->test_suite_name() << "." << test->name() << " "
                                     << tensor.elements() << " " << hash << "\n";
}

}  // namespace

Context& from_position(Context& context, int64_t batch, int64_t length, int64_t first) {
  std::vector<int32_t> positions;
  for (int64_t n = 0; n < batch * length; ++n) {
    positions.push_back(static_cast<int32_t>(first + n % length));
  }
  context.positions = to_device(int_tensor({batch, length}, positions), context.stream.device());
  return context;
}

Tensor to_device(const Tensor& tensor, Device device) {
  const bool from_gpu = tensor.device() == Device::kCuda;
  const Tensor result =
      copied(test_stream(from_gpu ? Device::kCuda : device), tensor, test_memory(device));
  if (from_gpu && device == Device::kCpu) {
    record_bits(result);
  }
  return result;
}

Tensor rounded_to(const Tensor& tensor, DType dtype) {
  const Tensor result = Tensor::empty(test_memory(), tensor.shape(), dtype, MemoryClass::kData);
  const std::vector<double> values = values_of(tensor);
  on_float(dtype, [&]<class T>() {
    std::ranges::transform(values, result.data<T>(),
                           [](double value) { return T(static_cast<Wide<T>>(value)); });
  });
  return result;
}

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

Tensor unwritten(const Shape& shape, DType dtype, Device device) {
  const Tensor tensor = Tensor::empty(test_memory(), shape, dtype, MemoryClass::kGradients);
  on_float(dtype, [&]<class T>() {
    std::ranges::fill(tensor.as<T>(), T(std::numeric_limits<Wide<T>>::quiet_NaN()));
  });
  return to_device(tensor, device);
}

void bind_parameters(std::span<Parameter* const> parameters, DType dtype, uint64_t seed,
                     double scale) {
  ParamId id = 0;
  for (Parameter* parameter : parameters) {
    parameter->id = id++;
    parameter->value =
        random_tensor(parameter->shape, dtype, seed + static_cast<uint64_t>(id), scale);
    parameter->grad = unwritten(parameter->shape, wide_of(dtype));
    parameter->grad_written = false;
  }
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<double> values_of(const Tensor& tensor) {
  const Tensor host = to_host(tensor);
  return on_float(host.dtype(), [&]<class T>() {
    const auto span = host.as<T>();
    return std::vector<double>(span.begin(), span.end());
  });
}

}  // namespace tandem::testing

// What most tests share: one test body for every device, a context to run ops in, and memory for
// parameters.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "src/autograd/context.h"
#include "src/autograd/tape.h"

namespace tandem::testing {

// Runs `body` on every available device; with TANDEM_REQUIRE_DEVICES=cpu,cuda a missing one is a
// failure.
void for_each_device(const std::function<void(Device)>& body);

// What the Error says that `body` throws; "" if it throws none.
std::string message_of(const std::function<void()>& body);

// The test program's only compute stream of a device, and the memory for its tensors, which that
// stream orders.
Stream& test_stream(Device device = Device::kCpu);
Memory& test_memory(Device device = Device::kCpu);

// StepNumbers in the memory of a device.
class DeviceNumbers {
 public:
  explicit DeviceNumbers(Device device, const StepNumbers& numbers = {});
  const StepNumbers* get() const { return reinterpret_cast<const StepNumbers*>(bytes_.raw()); }

 private:
  Tensor bytes_;
};

// Everything an op needs, with a recording tape.
struct TestContext {
  explicit TestContext(Device device = Device::kCpu, const StepNumbers& numbers = {.seed = 1});
  Stream& stream;
  DeviceNumbers numbers;
  Tape tape;
  Context context;
};

// Normally distributed numbers times `scale`: a pure function of `seed`.
Tensor random_tensor(Shape shape, DType dtype, uint64_t seed, double scale = 1.0);
// The same values, rounded to another floating dtype; host memory.
Tensor rounded_to(const Tensor& tensor, DType dtype);
Tensor int_tensor(Shape shape, std::span<const int32_t> values);

// Sets the positions of a batch [batch, length]: first, first + 1, ... in each sample.
Context& from_position(Context& context, int64_t batch, int64_t length, int64_t first);

// Copies to the memory of a device or of the host. If TANDEM_TEST_BITS names a file, the hash of
// each tensor that comes from a GPU is written to it. tests/simt/agree.sh compares the files of
// runs that must have the same bits.
Tensor to_device(const Tensor& tensor, Device device);
inline Tensor to_host(const Tensor& tensor) { return to_device(tensor, Device::kCpu); }

// Memory for a gradient that is not written yet. It holds NaN, so that adding to it shows.
Tensor unwritten(const Shape& shape, DType dtype, Device device = Device::kCpu);

// Gives each parameter an id, a random value and memory for its gradient.
void bind_parameters(std::span<Parameter* const> parameters, DType dtype, uint64_t seed = 1,
                     double scale = 1.0);

// Elements as f64; any device.
std::vector<double> values_of(const Tensor& tensor);

}  // namespace tandem::testing

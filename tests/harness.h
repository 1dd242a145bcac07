// Common ground of the tests: one body for every device, a context to run ops in, and memory for
// parameters.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <vector>

#include "src/autograd/context.h"
#include "src/autograd/tape.h"

namespace tandem::testing {

// Runs `body` on every available device; with TANDEM_REQUIRE_DEVICES=cpu,cuda a missing one is a
// failure.
void for_each_device(const std::function<void(Device)>& body);

// The pool that test tensors come from.
Memory& test_memory();

// Everything an op needs, with a recording tape.
struct TestContext {
  explicit TestContext(Device device = Device::kCpu);
  Stream stream;
  Tape tape;
  Context context;
};

// Normal numbers times `scale`, a pure function of `seed`.
Tensor random_tensor(Shape shape, DType dtype, uint64_t seed, double scale = 1.0);
Tensor int_tensor(Shape shape, std::span<const int32_t> values);

// Gives each parameter an id, a random value and memory for its gradient.
void bind_parameters(std::span<Parameter* const> parameters, DType dtype, uint64_t seed = 1,
                     double scale = 1.0);

// Elements as f64.
std::vector<double> values_of(const Tensor& tensor);

}  // namespace tandem::testing

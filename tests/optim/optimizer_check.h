// What every optimizer must do, whatever its rule, and the numbers its tests share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "tests/support/harness.h"

namespace tandem::testing {

using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(std::span<const Shard> shards, Memory& memory)>;

// A StepState in the memory of a device.
class DeviceState {
 public:
  explicit DeviceState(Device device, const StepState& state = {});
  void write(const StepState& state);
  StepState read() const;
  // The verdict on a step of this squared norm, on the device.
  void decide(double squared_norm, const StepOptions& options = {});
  StepState* get() const { return reinterpret_cast<StepState*>(bytes_.raw()); }

 private:
  Tensor bytes_;
};

Tensor f32_tensor(const std::vector<double>& values, Device device = Device::kCpu);
void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance);

// What a training left behind; state by slot, of all shards together.
struct Trained {
  std::vector<double> value, working;
  std::map<std::string, std::vector<double>> state;
};

// Four steps of fixed gradients, which carry a loss scale of 2, on two shards of four elements that
// start equal: the first with weight decay, the second without.
Trained train_four_steps(const MakeOptimizer& make, Device device);

// Every element's bits depend on that element alone: not on the shard it is in, on its place in it
// (vector or remainder), on a working copy beside it, or on the number of threads. ZeRO relies on
// this.
void check_cuts_and_threads_change_no_bit(const MakeOptimizer& make);
// A working copy in bf16 or fp16 is the value rounded to nearest, element by element.
void check_working_copy(const MakeOptimizer& make);
// A step whose gradients are not finite leaves every bit of values, state and working copy, and
// does not count.
void check_skipped_step_leaves_all_bits(const MakeOptimizer& make);
// All devices give what the CPU gives.
void check_devices_agree(const MakeOptimizer& make);
// Refuses shards it was not made for.
void check_refuses_other_shards(const MakeOptimizer& make);

}  // namespace tandem::testing

// Checks that every optimizer must pass, whatever its rule, and the numbers that its tests share.
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
  // Decides, on the device, whether a step with this squared norm is applied.
  void decide(double squared_norm, const StepOptions& options = {});
  StepState* get() const { return reinterpret_cast<StepState*>(bytes_.raw()); }

 private:
  Tensor bytes_;
};

Tensor f32_tensor(const std::vector<double>& values, Device device = Device::kCpu);
void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance);

// The result of a training, of all shards together; state by slot.
struct Trained {
  std::vector<double> value, working;
  std::map<std::string, std::vector<double>> state;
};

// Four steps of fixed gradients, which carry a loss scale of 2, on two shards of four elements that
// start equal: the first with weight decay, the second without.
Trained train_four_steps(const MakeOptimizer& make, Device device);

// An element's bits depend only on that element: not on its shard, on its place in the shard
// (vector or remainder), on a working copy, or on the number of threads. ZeRO relies on this.
void check_cuts_and_threads_change_no_bit(const MakeOptimizer& make);
// Each element of a working copy in bf16 or fp16 is the value rounded to nearest.
void check_working_copy(const MakeOptimizer& make);
// A step whose gradients are not finite changes no bit of values, state and working copy, and does
// not count as a step.
void check_skipped_step_leaves_all_bits(const MakeOptimizer& make);
// prepare() and update() give the bits of step(), also where the arrays of a shard are elsewhere
// meanwhile.
void check_updates_of_one_shard(const MakeOptimizer& make);
// All devices give the results of the CPU.
void check_devices_agree(const MakeOptimizer& make);
// make() throws an Error(kConfig) that says `setting`, such as "optim.beta1 = 1".
void check_refuses(const std::function<void()>& make, const std::string& setting);
// An optimizer refuses shards that it was not made for.
void check_refuses_other_shards(const MakeOptimizer& make);

}  // namespace tandem::testing

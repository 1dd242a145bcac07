// Updates flat shards of parameters from their gradients.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "optim/step_control.h"
#include "src/core/step_numbers.h"
#include "src/device/memory.h"
#include "src/device/shard.h"
#include "src/device/stream.h"

namespace tandem {

// What an update reads in the memory of the stream's device.
struct StepInputs {
  const StepNumbers* numbers = nullptr;  // the learning rate
  const StepState* state = nullptr;      // of this step, after decide_step()
};

// An optimizer keeps its arrays here. All references must outlive it.
struct OptimizerMemory {
  OptimizerMemory(Memory& all) : device(all), state(all) {}
  OptimizerMemory(Memory& of_device, Memory& of_state, Matrices* of_shards = nullptr)
      : device(of_device), state(of_state), matrices(of_shards) {}
  Memory& device;  // of the stream that updates
  Memory& state;   // for the state of shards; in the host's memory only update() can be called
  Matrices* matrices = nullptr;  // of the shards; null: none has `matrix`
};

class Optimizer {
 public:
  // slot: name of one kind of state ("m", "v", "momentum"); state: f32, same length and order as
  // shards[shard].
  using StateVisitor =
      std::function<void(std::string_view slot, size_t shard, const Tensor& state)>;

  virtual ~Optimizer() = default;
  // shards: the same ones as on construction, in the same order; construction allocated zero state
  // for them. Gradients are first multiplied by the step's grad_scale. If the step's `apply` is 0,
  // values, state and working copies keep every bit. Enqueued; the host does not wait.
  virtual void step(Stream& stream, std::span<const Shard> shards, const StepInputs& inputs) = 0;
  // step() in parts, for shards whose arrays come to the device one after another. prepare() keeps
  // what all elements of the step share, so that the inputs may change afterwards. update() then
  // updates a shard, on any stream that sees this. state: the shard's arrays by slot, on the
  // device.
  virtual void prepare(Stream& stream, const StepInputs& inputs) = 0;
  virtual void update(Stream& stream, const Shard& shard, std::span<const Tensor> state) = 0;
  virtual void visit(const StateVisitor& visitor) const = 0;
};

}  // namespace tandem

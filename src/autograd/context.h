// The first argument of every layer function: the stream and memory to use, and what to record.
#pragma once

#include <initializer_list>

#include "src/autograd/attention_kernels.h"
#include "src/autograd/op.h"
#include "src/autograd/variable.h"
#include "src/core/slice.h"
#include "src/core/step_numbers.h"
#include "src/device/stream.h"

namespace tandem {

class Collectives;
class Gate;
class HostStack;
class Tape;

// Which rows of a batch of sequences [batch, length] the activations between blocks have. Ranks
// that cut layers have equally many rows each. Without a tape, the last ones may be padding.
struct BatchRows {
  int64_t batch = 0, length = 0;  // 0: activations have whole samples along axis 0
  Range here{};                   // of rows
  static BatchRows of(const Shape& tokens, const Cut& cut) {
    const int64_t rows = (tokens.elements() + cut.count - 1) / cut.count * cut.count;
    return {tokens[0], tokens[1], cut.of(rows)};
  }
};

struct Context {
  Stream& stream;
  Memory& memory;
  Tape* tape = nullptr;  // null: nothing is recorded (inference)
  // In device memory; required for training. Its seed, step and first sample determine the random
  // numbers, so these do not depend on the number of ranks.
  const StepNumbers* numbers = nullptr;
  // In device memory, f32: the gradient of each loss, if it is known before the losses are. Then
  // the loss writes its gradient when it is computed, and Tape::backward(context) goes on from it.
  const float* loss_gradient = nullptr;
  bool training = false;     // dropout is active; BatchNorm uses the micro-batch's statistics
  bool recomputing = false;  // forward runs again inside backward: do not count statistics twice
  Gate* gate = nullptr;      // called around each block; null: parameters are always in memory
  bool recompute = false;    // keep only a block's inputs, and recompute the rest in backward
  // Where such inputs wait for backward; null: in the memory of the device.
  HostStack* parked = nullptr;
  AttentionKernels attention = AttentionKernels::kAuto;
  Collectives* tensor = nullptr;  // the ranks that hold other slices of layers; null: none
  BatchRows rows{};               // of a model that reads sequences
  // i32 [B, T], for a batch of sequences: which token of its document each one is, counted from 0.
  // A row holds whole documents one after another; they do not see each other. Null: a row is one
  // document.
  Tensor positions{};
  int64_t document_length = 0;  // the mean, for the work that a dry stream counts; 0: a row's

  // Uninitialized memory on the compute stream's device.
  Tensor activation(Shape shape, DType dtype) const {
    return Tensor::empty(memory, shape, dtype, MemoryClass::kActivations);
  }
  Tensor workspace(Shape shape, DType dtype) const {
    return Tensor::empty(memory, shape, dtype, MemoryClass::kWorkspace);
  }

  bool saves() const;  // whether the tape keeps ops that are recorded now
  // Wraps an op's result. With a tape, the op is kept for backward with its inputs and parameters.
  Variable record(Tensor result, std::unique_ptr<Op> op, std::initializer_list<Variable> inputs,
                  std::initializer_list<Parameter*> parameters = {});
};

}  // namespace tandem

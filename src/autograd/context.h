// Where and how to run, and what to remember: the first argument of every layer function.
#pragma once

#include <initializer_list>

#include "src/autograd/op.h"
#include "src/autograd/variable.h"
#include "src/core/step_numbers.h"
#include "src/device/stream.h"

namespace tandem {

class Gate;
class Tape;

struct Context {
  Stream& stream;
  Memory& memory;
  Tape* tape = nullptr;  // null: nothing is remembered (inference)
  // In the memory of the device; needed while training. Its seed, step and first sample name the
  // random numbers, whatever the number of ranks.
  const StepNumbers* numbers = nullptr;
  bool training = false;     // dropout drops; BatchNorm uses the micro-batch's statistics
  bool recomputing = false;  // a forward pass run again inside backward: observe nothing twice
  Gate* gate = nullptr;      // around each block; null: all parameters are always there
  bool recompute = false;    // keep what goes into a block, not what it computes

  // Of a step's memory traffic outside products this is most: each activation and each gradient of
  // one is written once and read about twice.
  static constexpr double kTouches = 3;

  // Undefined elements, on the compute stream's device.
  Tensor activation(Shape shape, DType dtype) const {
    Tensor tensor = Tensor::empty(memory, shape, dtype, MemoryClass::kActivations);
    stream.charge({.bytes = kTouches * static_cast<double>(tensor.bytes())});
    return tensor;
  }
  Tensor workspace(Shape shape, DType dtype) const {
    return Tensor::empty(memory, shape, dtype, MemoryClass::kWorkspace);
  }

  bool saves() const;  // whether ops recorded now are kept for backward
  // Wraps an op's result. On a tape the op is kept for backward, with its inputs and parameters.
  Variable record(Tensor result, std::unique_ptr<Op> op, std::initializer_list<Variable> inputs,
                  std::initializer_list<Parameter*> parameters = {});
};

}  // namespace tandem

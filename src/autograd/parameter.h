// What a model learns, and what it merely observes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/core/rng.h"
#include "src/core/slice.h"
#include "src/device/tensor.h"

namespace tandem {

using ParamId = int32_t;

// How a parameter starts. The numbers are a pure function of (seed, parameter name, element of the
// logical tensor).
struct Initializer {
  enum class Kind : uint8_t { kConstant, kNormal };
  Kind kind = Kind::kConstant;
  double scale = 0;  // the constant, or the standard deviation

  static Initializer constant(double value) { return {Kind::kConstant, value}; }
  static Initializer normal(double deviation) { return {Kind::kNormal, deviation}; }
};

// Memory is not owned by the model: a store binds `value` and `grad` to views of its flat buffers,
// and under ZeRO-3 `value` comes and goes. Ops therefore save a Parameter*, never its tensor.
struct Parameter {
  std::string name;
  Shape shape;
  Initializer init{};
  bool decay = false;   // weight decay applies (matrices and embeddings; not biases and norms)
  bool shared = false;  // other blocks use it too: ZeRO-3 keeps it whole
  bool frozen = false;  // keeps its value: no gradient is computed
  std::optional<Slice> part{};  // of a larger logical tensor, which others have the rest of

  ParamId id = -1;  // position in the model's forward order, set by the store
  Tensor value{};
  Tensor grad{};
  bool grad_written = false;  // false: the next write overwrites, true: it adds

  bool wanted() const { return !frozen; }  // its gradient is
  // What it is of its logical tensor: `part`, or all of it.
  Slice slice() const { return part ? *part : Slice(shape); }
};

// The parameters of one block, in the order of their first use.
struct BlockParameters {
  std::string name;
  std::vector<Parameter*> parameters;
};

// Names the parameter's stream of random numbers, whatever other parameters the model has.
uint32_t random_stream_of(const std::string& parameter_name);

// Fills parameter.value (f32 or f64, CPU).
void initialize(Parameter& parameter, uint64_t seed);

// A mean and a variance that a layer observes while training and uses for inference (BatchNorm). A
// layer adds each micro-batch's figures to `sum`; once a step the trainer averages over
// micro-batches and ranks and updates `running`.
struct RunningStatistics {
  std::string name;
  int64_t channels = 0;
  Tensor sum{};      // f32 [2, C]: sums of the micro-batch means, of the unbiased variances
  Tensor running{};  // f32 [2, C]: mean, variance
};

}  // namespace tandem

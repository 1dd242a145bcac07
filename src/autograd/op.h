// One differentiable operation on the tape. A derived struct's fields hold what forward saved for
// backward.
#pragma once

#include <string_view>
#include <vector>

#include "src/autograd/variable.h"

namespace tandem {

class Op {
 public:
  virtual ~Op() = default;
  virtual std::string_view name() const = 0;
  // dy: the gradient of the loss with respect to this op's result, with the result's shape. Writes
  // or adds the gradients of those inputs and parameters that are wanted(). May overwrite dy's
  // memory only if dy.unique().
  virtual void backward(Context& context, Tensor& dy) = 0;

 protected:
  Input& input(size_t index) { return inputs_[index]; }
  Parameter& parameter(size_t index) { return *parameters_[index]; }
  // Where to write the gradient of a parameter; empty if the parameter is frozen or absent.
  GradTarget parameter_target(size_t index) {
    Parameter* parameter = index < parameters_.size() ? parameters_[index] : nullptr;
    return parameter && parameter->wanted() ? grad_target(*parameter) : GradTarget{};
  }

 private:
  friend class Tape;
  std::vector<Input> inputs_;
  std::vector<Parameter*> parameters_;
};

}  // namespace tandem

// One differentiable operation on the tape. A derived struct's fields hold what forward saved for
// backward.
#pragma once

#include <string_view>
#include <vector>

#include "src/autograd/parameter_sums.h"
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
  // False if the parameter is frozen or absent.
  bool parameter_wanted(size_t index) const {
    return index < parameters_.size() && parameters_[index] && parameters_[index]->wanted();
  }
  // Where to write the gradient of a parameter; empty if it is not wanted.
  GradTarget parameter_target(size_t index) {
    return parameter_wanted(index) ? grad_target(*parameters_[index]) : GradTarget{};
  }
  // The sums over chunks of dy's rows, [chunks, columns]; empty if nobody took them.
  const Tensor& dy_row_sums() const { return dy_row_sums_; }
  // The gradient of a parameter, if it is wanted, gets the sum of the rows of partial [chunks,
  // elements of the parameter]. They are added at the end of the block's backward pass at the
  // latest.
  void add_rows(size_t index, Tensor partial) {
    if (parameter_wanted(index)) {
      sums_->add(*parameters_[index], std::move(partial));
    }
  }

 private:
  friend class Tape;
  Tensor dy_row_sums_;             // set for backward
  ParameterSums* sums_ = nullptr;  // set for backward
  std::vector<Input> inputs_;
  std::vector<Parameter*> parameters_;
};

}  // namespace tandem

// A tensor together with a place for its gradient.
#pragma once

#include <memory>
#include <utility>

#include "src/autograd/parameter.h"

namespace tandem {

struct Context;

// Where an op writes a gradient. As in GEMM, beta 0 overwrites `into` and beta 1 adds to it.
struct GradTarget {
  Tensor into;
  int beta = 0;
  int64_t bytes() const { return (1 + beta) * into.bytes(); }  // that writing or adding moves
};

// The gradient of one variable during backward. It is separate from the value, so that an op can
// save the slot of its input without keeping the input's value alive.
struct GradSlot {
  Shape shape;
  DType dtype;
  Tensor grad{};  // empty until the first contribution
  // A sum over the rows of grad, its bias's gradient, is wanted by the op that computed the
  // variable. Another op that reads or writes all of grad may leave it here.
  bool wants_row_sums = false;
  Tensor row_sums{};  // [chunks, columns]: sums over chunks of grad's rows; empty: unknown
};

class Variable {
 public:
  Variable() = default;
  explicit Variable(Tensor value) : value_(std::move(value)) {}  // no gradient is wanted
  Variable(Tensor value, std::shared_ptr<GradSlot> slot)
      : value_(std::move(value)), slot_(std::move(slot)) {}
  // A variable that needs a gradient (requires_grad), with a new slot for it.
  static Variable leaf(Tensor value) {
    auto slot = std::make_shared<GradSlot>(GradSlot{value.shape(), value.dtype(), {}});
    return Variable(std::move(value), std::move(slot));
  }

  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  int64_t elements() const { return value_.elements(); }
  template <class T>
  T* data() const {
    return value_.data<T>();
  }
  bool wanted() const { return slot_ != nullptr; }
  const std::shared_ptr<GradSlot>& slot() const { return slot_; }
  // Returns the elements in another shape, and becomes empty. The gradient keeps its shape.
  Variable reshape(const Shape& shape) && {
    return {std::exchange(value_, Tensor()).reshape(shape), std::move(slot_)};
  }

 private:
  Tensor value_;
  std::shared_ptr<GradSlot> slot_;
};

// An op's access to the gradient of one of its inputs.
class Input {
 public:
  Input() = default;
  explicit Input(const Variable& variable) : slot_(variable.slot()) {}
  bool wanted() const { return slot_ != nullptr; }
  // A tensor of the input's shape to write or add to. The op must write it before the next op's
  // backward runs.
  GradTarget target(Context& context) const;
  // Adds a gradient that is already computed; row_sums as in GradSlot. The first contribution is
  // kept without a copy.
  void add(Context& context, const Tensor& grad, const Tensor& row_sums = {}) const;
  // As in GradSlot; to be set after the gradient was written to its target.
  bool wants_row_sums() const { return slot_ && slot_->wants_row_sums; }
  void set_row_sums(Tensor sums) const { slot_->row_sums = std::move(sums); }
  const std::shared_ptr<GradSlot>& slot() const { return slot_; }

 private:
  std::shared_ptr<GradSlot> slot_;
};

// Where an op writes the gradient of a wanted parameter.
GradTarget grad_target(Parameter& parameter);

}  // namespace tandem

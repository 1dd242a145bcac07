#include "src/autograd/tape.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "src/autograd/say_where.h"
#include "src/core/error.h"
#include "src/device/copy.h"
#include "src/kernels/elementwise.h"

namespace tandem {

bool Context::saves() const { return tape && tape->saves(); }

Variable Context::record(Tensor result, std::unique_ptr<Op> op,
                         std::initializer_list<Variable> inputs,
                         std::initializer_list<Parameter*> parameters) {
  if (!tape) {
    return Variable(std::move(result));
  }
  return tape->record(std::move(result), std::move(op), inputs, parameters);
}

GradTarget Input::target(Context& context) const {
  Tensor& grad = slot_->grad;
  slot_->row_sums = {};
  if (!grad) {
    grad = context.activation(slot_->shape, slot_->dtype);
    return {grad, 0};
  }
  if (!grad.unique()) {
    // Another op still reads this memory as its own gradient, so add into a copy.
    Tensor copy = context.activation(slot_->shape, slot_->dtype);
    tandem::copy(context.stream, grad, copy);
    grad = copy;
  }
  return {grad, 1};
}

void Input::add(Context& context, const Tensor& grad, const Tensor& row_sums) const {
  require(grad.shape().elements() == slot_->shape.elements() && grad.dtype() == slot_->dtype,
          "gradient ", grad.shape(), " for a variable of shape ", slot_->shape);
  if (!slot_->grad) {
    slot_->grad = grad.reshape(slot_->shape);
    slot_->row_sums = row_sums;
    return;
  }
  const GradTarget sum = target(context);
  on_device(context.stream, touching(grad, sum), slot_->dtype, [&]<class T>(auto device) {
    T* into = sum.into.data<T>();
    kernels::add(device, grad.elements(), into, grad.data<T>(), into);
  });
}

GradTarget grad_target(Parameter& parameter) {
  require(parameter.wanted() && parameter.grad, "parameter ", parameter.name,
          " has no memory for its gradient");
  const GradTarget target{parameter.grad, parameter.grad_written ? 1 : 0};
  parameter.grad_written = true;
  return target;
}

Tape::Tape(OnFinal on_final, OnOp on_op) : uses_(std::make_shared<Uses>()) {
  uses_->on_final = std::move(on_final);
  uses_->on_op = std::move(on_op);
}

Tape Tape::holding(Tape& outer) { return Tape(outer.uses_, true); }

Tape Tape::replaying(Tape& outer) { return Tape(outer.uses_, false); }

std::vector<Parameter*> Tape::take_held() { return std::move(held_); }

void Tape::use(Parameter& parameter) {
  require(parameter.id >= 0, "parameter ", parameter.name, " belongs to no store");
  if (static_cast<size_t>(parameter.id) >= uses_->count.size()) {
    uses_->count.resize(static_cast<size_t>(parameter.id) + 1, 0);
  }
  ++uses_->count[parameter.id];
}

void Tape::release(Context& context, Parameter& parameter) {
  if (--uses_->count[parameter.id] > 0 || !uses_->on_final) {
    return;
  }
  if (sums_.misses(&parameter) || !final_.empty()) {
    final_.push_back(&parameter);
  } else {
    uses_->on_final(context, parameter);
  }
}

void Tape::finish_sums(Context& context) {
  sums_.finish(context.stream);
  for (Parameter* parameter : std::exchange(final_, {})) {
    uses_->on_final(context, *parameter);
  }
}

void Tape::release_held(Context& context, const std::vector<Parameter*>& held) {
  for (auto it = held.rbegin(); it != held.rend(); ++it) {
    release(context, **it);
  }
}

Variable Tape::record(Tensor result, std::unique_ptr<Op> op, std::initializer_list<Variable> inputs,
                      std::initializer_list<Parameter*> parameters) {
  bool wanted = std::ranges::any_of(inputs, &Variable::wanted);
  for (Parameter* parameter : parameters) {
    if (!parameter || !parameter->wanted()) {
      continue;
    }
    wanted = true;
    if (!holding_ || std::ranges::find(held_, parameter) == held_.end()) {
      use(*parameter);
      if (holding_) {
        held_.push_back(parameter);
      }
    }
  }
  if (!wanted) {
    return Variable(std::move(result));
  }
  op->inputs_ = std::vector<Input>(inputs.begin(), inputs.end());
  op->parameters_ = parameters;
  Variable variable = Variable::leaf(std::move(result));
  if (!holding_) {
    uses_->on_op(*op, Pass::kForward);
    entries_.push_back({std::move(op), {variable.slot()}, block_, false});
  }
  return variable;
}

void Tape::record_segment(std::unique_ptr<Op> op, std::span<const Variable> inputs,
                          std::span<const Variable> results, BlockId block) {
  op->inputs_ = std::vector<Input>(inputs.begin(), inputs.end());
  entries_.push_back({std::move(op), {}, block, true});
  for (const Variable& result : results) {
    entries_.back().results.push_back(result.slot());
  }
}

void Tape::record_mark(std::unique_ptr<Op> op, BlockId block) {
  if (holding_) {
    return;
  }
  const bool ends = block_ == block;
  block_ = ends ? -1 : block;
  if (ends && entries_.back().results.empty()) {
    entries_.pop_back();  // removes the mark of the block's beginning
  } else {
    entries_.push_back({std::move(op), {}, block, true});
  }
}

std::string Tape::Entry::text(size_t index) const {
  std::string text = str("op ", index, ": ", op->name());
  for (const Parameter* parameter : op->parameters_) {
    text += parameter ? " " + parameter->name : "";
  }
  for (const std::shared_ptr<GradSlot>& result : results) {
    text += result ? str(" -> ", name_of(result->dtype), " ", result->shape) : "";
  }
  return block < 0 ? text : str(text, ", block ", block);
}

std::string Tape::text() const {
  std::string text;
  for (size_t i = 0; i < entries_.size(); ++i) {
    text += entries_[i].text(i) + "\n";
  }
  return text;
}

void Tape::print() const { std::fputs(text().c_str(), stderr); }

std::string Tape::latest() const {
  return entries_.empty() ? "" : entries_.back().text(entries_.size() - 1);
}

void Tape::backward(Context& context, const Variable& y, double seed) {
  Tensor dy = context.activation(y.shape(), y.dtype());
  on_device(context.stream, touching(dy), y.dtype(), [&]<class T>(auto device) {
    kernels::fill(device, dy.elements(), dy.data<T>(), static_cast<Wide<T>>(seed));
  });
  backward(context, y, std::move(dy));
}

void Tape::backward(Context& context, const Variable& y, Tensor dy) {
  std::vector<Tensor> all;
  all.push_back(std::move(dy));
  backward(context, std::vector{y}, std::move(all));
}

void Tape::backward(Context& context, std::vector<Variable> y, std::vector<Tensor> dy,
                    std::vector<Tensor> row_sums) {
  require(!holding_, "Tape::backward: a holding tape records nothing");
  row_sums.resize(y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    require(!dy[i] || y[i].wanted(),
            "Tape::backward: the result depends on nothing that wants a gradient");
    if (dy[i]) {
      // A result may also be an input of the tape's first op.
      Input(y[i]).add(context, dy[i], row_sums[i]);
    }
  }
  y.clear();
  dy.clear();
  row_sums.clear();
  while (!entries_.empty()) {
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    say_where([&] { return "backward of " + entry.text(entries_.size()); },
              [&] { differentiate(context, entry); });
    for (auto it = entry.op->parameters_.rbegin(); it != entry.op->parameters_.rend(); ++it) {
      if (*it && (*it)->wanted()) {
        release(context, **it);
      }
    }
  }
  finish_sums(context);
}

void Tape::differentiate(Context& context, Entry& entry) {
  const auto misses = [&](const Parameter* parameter) { return sums_.misses(parameter); };
  if (entry.is_block || std::ranges::any_of(entry.op->parameters_, misses)) {
    finish_sums(context);
  }
  Tensor dy = entry.is_block ? Tensor() : std::exchange(entry.results[0]->grad, Tensor());
  if (dy || entry.is_block) {
    entry.op->sums_ = &sums_;
    if (!entry.is_block) {
      entry.op->dy_row_sums_ = std::exchange(entry.results[0]->row_sums, Tensor());
    }
    entry.op->backward(context, dy);
    uses_->on_op(*entry.op, Pass::kBackward);
  }
}

}  // namespace tandem

// The record of a forward pass. Backward walks it in reverse record order, which is a topological
// order by construction and the same on every rank. Each op is dropped as soon as it was
// differentiated, and with it what it saved.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/autograd/context.h"
#include "src/autograd/gate.h"
#include "src/autograd/op.h"

namespace tandem {

class Tape {
 public:
  // Called when the last use of a parameter has been differentiated: its gradient is final for this
  // backward pass. Exactly once per used parameter that is wanted, in an order fixed by the model
  // alone.
  using OnFinal = std::function<void(Context&, Parameter&)>;

  // Called when the work of an op in a pass has been enqueued.
  using OnOp = std::function<void(const Op&, Pass)>;

  explicit Tape(
      OnFinal on_final = {}, OnOp on_op = [](const Op&, Pass) {});

  Variable record(Tensor result, std::unique_ptr<Op> op, std::initializer_list<Variable> inputs,
                  std::initializer_list<Parameter*> parameters);
  // Records a block's recompute segment, which has something to differentiate. Its backward always
  // runs, with an empty gradient: it takes those of its results from their slots itself.
  void record_segment(std::unique_ptr<Op> op, std::span<const Variable> inputs,
                      std::span<const Variable> results, BlockId block);
  // Records where a block begins, and then where it ends: an op without results, whose backward
  // always runs, with an empty gradient. Both are left out when nothing was recorded in between.
  void record_mark(std::unique_ptr<Op> op, BlockId block);

  // Differentiates everything on the tape, with every element of dy equal to seed, times the number
  // at `scale` in the memory of the device unless null. The tape is empty afterwards.
  void backward(Context& context, const Variable& y, double seed, const float* scale = nullptr);
  void backward(Context& context, const Variable& y, Tensor dy);
  // With several results: dy[i] is the gradient by y[i], or nothing.
  void backward(Context& context, std::vector<Variable> y, std::vector<Tensor> dy);

  bool saves() const { return !holding_; }  // whether it keeps what is recorded
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

  // For debuggers and messages: a line for each op with its parameters, its result and its block,
  // as "op 1: linear w b -> f32 [3, 4], block 0".
  std::string text() const;
  void print() const;          // the text, to standard error
  std::string latest() const;  // the last line without its end; empty when nothing is recorded

  // Recompute segments. A holding tape keeps no ops: it holds one use of each wanted parameter that
  // the segment's forward touches, in first-use order. A replaying tape records the segment again
  // and shares the outer tape's counts.
  static Tape holding(Tape& outer);
  static Tape replaying(Tape& outer);
  std::vector<Parameter*> take_held();
  void release_held(Context& context, const std::vector<Parameter*>& held);

 private:
  struct Uses {
    std::vector<int64_t> count;  // by ParamId
    OnFinal on_final;
    OnOp on_op;
  };
  struct Entry {
    std::unique_ptr<Op> op;
    std::vector<std::shared_ptr<GradSlot>> results;  // of a mark none
    BlockId block;                                   // -1: none
    bool is_block;                                   // a mark or a segment
    std::string text(size_t index) const;
  };
  Tape(std::shared_ptr<Uses> uses, bool holding) : uses_(std::move(uses)), holding_(holding) {}

  void use(Parameter& parameter);
  void release(Context& context, Parameter& parameter);
  void differentiate(Context& context, Entry& entry);

  std::shared_ptr<Uses> uses_;
  bool holding_ = false;
  BlockId block_ = -1;  // in which ops are recorded now
  std::vector<Parameter*> held_;
  std::vector<Entry> entries_;
};

}  // namespace tandem

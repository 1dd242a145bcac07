// The record of a forward pass. Backward walks the tape in reverse. This order is topological by
// construction, and the same on every rank. Each op, with all that it saved, is freed as soon as it
// has been differentiated.
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
  // Called when the last use of a parameter has been differentiated, so its gradient is final for
  // this backward pass. Called exactly once for each used parameter that is wanted(), in an order
  // that depends only on the model.
  using OnFinal = std::function<void(Context&, Parameter&)>;

  // Called when an op's work in one pass has been enqueued.
  using OnOp = std::function<void(const Op&, Pass)>;

  explicit Tape(
      OnFinal on_final = {}, OnOp on_op = [](const Op&, Pass) {});

  Variable record(Tensor result, std::unique_ptr<Op> op, std::initializer_list<Variable> inputs,
                  std::initializer_list<Parameter*> parameters);
  // Records a block's recompute segment, which must have something to differentiate. The segment's
  // backward always runs, with an empty dy: it takes the gradients of its results from their slots.
  void record_segment(std::unique_ptr<Op> op, std::span<const Variable> inputs,
                      std::span<const Variable> results, BlockId block);
  // The first call records where a block begins, the second where it ends. Such a mark is an op
  // without results; its backward always runs, with an empty dy. If nothing was recorded in
  // between, both marks are dropped.
  void record_mark(std::unique_ptr<Op> op, BlockId block);

  // Differentiates everything on the tape, from gradients that forward left in the slots of
  // results. Afterwards the tape is empty.
  void backward(Context& context) { backward(context, std::vector<Variable>(), {}); }
  // The same, from dy, the gradient with respect to y; every element of it is `seed`.
  void backward(Context& context, const Variable& y, double seed);
  void backward(Context& context, const Variable& y, Tensor dy);
  // For several results: dy[i] is the gradient with respect to y[i], or empty. row_sums[i], where
  // there is one, belongs to dy[i] (GradSlot).
  void backward(Context& context, std::vector<Variable> y, std::vector<Tensor> dy,
                std::vector<Tensor> row_sums = {});

  bool saves() const { return !holding_; }  // whether recorded ops are kept
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }

  // For debuggers and messages: one line for each op, with its parameters, its result and its
  // block, such as "op 1: linear w b -> f32 [3, 4], block 0".
  std::string text() const;
  void print() const;          // writes text() to standard error
  std::string latest() const;  // the last line of text(), without its newline; empty if the tape is

  // Recompute segments use two kinds of tape. A holding tape keeps no ops. It holds one use of each
  // wanted parameter that the segment's forward reads, in the order of first use, so that no such
  // gradient becomes final too early. A replaying tape records the segment again and shares the use
  // counts of the outer tape.
  static Tape holding(Tape& outer);
  static Tape replaying(Tape& outer);
  std::vector<Parameter*> take_held();
  void release_held(Context& context, const std::vector<Parameter*>& held);

 private:
  struct Uses {
    std::vector<int64_t> count;  // indexed by ParamId
    OnFinal on_final;
    OnOp on_op;
  };
  struct Entry {
    std::unique_ptr<Op> op;
    std::vector<std::shared_ptr<GradSlot>> results;  // empty for a mark
    BlockId block;                                   // -1: none
    bool is_block;                                   // a mark or a segment
    std::string text(size_t index) const;
  };
  Tape(std::shared_ptr<Uses> uses, bool holding) : uses_(std::move(uses)), holding_(holding) {}

  void use(Parameter& parameter);
  void release(Context& context, Parameter& parameter);
  void differentiate(Context& context, Entry& entry);
  void finish_sums(Context& context);

  std::shared_ptr<Uses> uses_;
  bool holding_ = false;
  BlockId block_ = -1;  // the block that is being recorded; -1: none
  std::vector<Parameter*> held_;
  std::vector<Entry> entries_;
  ParameterSums sums_;             // of the block that is being differentiated
  std::vector<Parameter*> final_;  // final once sums_ are finished, in order
};

}  // namespace tandem

#include "src/autograd/block.h"

#include "src/autograd/say_where.h"
#include "src/autograd/tape.h"
#include "src/core/profiler_range.h"

namespace tandem {

namespace {

struct BlockMark final : Op {
  BlockMark(Gate& block_gate, BlockId block_id, bool enters)
      : gate(block_gate), id(block_id), is_entry(enters) {}
  Gate& gate;
  BlockId id;
  bool is_entry;

  std::string_view name() const override { return is_entry ? "block_entry" : "block_exit"; }
  void backward(Context& context, Tensor&) override {
    if (is_entry) {
      gate.release(context, id, Pass::kBackward);
      ProfilerRange::end();
    } else {
      ProfilerRange::begin(str("block ", id, " backward"));
      gate.acquire(context, id, Pass::kBackward);
    }
  }
};

struct SegmentOp final : Op {
  SegmentOp(Gate& block_gate, BlockId block_id) : gate(block_gate), id(block_id) {}
  Gate& gate;
  BlockId id;
  BlockBody body;
  Tensor x;                      // all that is kept of the forward pass
  std::vector<Parameter*> held;  // one use each, until the segment was differentiated

  std::string_view name() const override { return "segment"; }
  void backward(Context& context, Tensor& dy) override {
    const ProfilerRange range(str("block ", id, " again and backward"));
    gate.acquire(context, id, Pass::kBackward);
    Tape inner = Tape::replaying(*context.tape);
    Context replay = context;
    replay.tape = &inner;
    replay.recomputing = true;
    // The replayed input shares the outer slot, so its gradient lands where it belongs.
    const Variable y = body(replay, Variable(x, input(0).slot()));
    inner.backward(replay, y, std::move(dy));
    context.tape->release_held(context, held);
    gate.release(context, id, Pass::kBackward);
  }
  void pass_over(Context& context) override { context.tape->release_held(context, held); }
};

Variable run_segment(Context& context, Gate& gate, BlockId id, const Variable& x,
                     const BlockBody& body) {
  auto op = std::make_unique<SegmentOp>(gate, id);
  Tape holding = Tape::holding(*context.tape);
  Context unrecorded = context;
  unrecorded.tape = &holding;
  const Variable y = body(unrecorded, x);
  op->body = body;
  op->x = x.value();
  op->held = holding.take_held();
  if (op->held.empty() && !x.wanted()) {
    return Variable(y.value());
  }
  return context.tape->record_segment(y.value(), std::move(op), x, id);
}

Variable forward(Context& context, Gate& gate, BlockId id, bool recompute, const Variable& x,
                 const BlockBody& body) {
  if (!context.tape) {
    return body(context, x);
  }
  if (recompute) {
    return run_segment(context, gate, id, x, body);
  }
  context.tape->record_mark(std::make_unique<BlockMark>(gate, id, true), id);
  const Variable y = body(context, x);
  context.tape->record_mark(std::make_unique<BlockMark>(gate, id, false), id);
  return y;
}

}  // namespace

Variable run_block(Context& context, Gate& gate, BlockId id, bool recompute, const Variable& x,
                   const BlockBody& body) {
  const ProfilerRange range(str("block ", id, " forward"));
  gate.acquire(context, id, Pass::kForward);
  const auto place = [&] {
    const std::string after = context.tape ? context.tape->latest() : "";
    return str("forward of block ", id, after.empty() ? "" : ", after ", after);
  };
  const Variable y =
      say_where(place, [&] { return forward(context, gate, id, recompute, x, body); });
  gate.release(context, id, Pass::kForward);
  return y;
}

}  // namespace tandem

#include "src/autograd/block.h"

#include <algorithm>
#include <utility>

#include "src/autograd/say_where.h"
#include "src/autograd/tape.h"
#include "src/core/mapped.h"
#include "src/device/host/stack.h"
#include "src/device/profiler_range.h"

namespace tandem {

namespace {

void acquire(Context& context, BlockId id, Pass pass) {
  if (context.gate) {
    context.gate->acquire(context, id, pass);
  }
}

void release(Context& context, BlockId id, Pass pass) {
  if (context.gate) {
    context.gate->release(context, id, pass);
  }
}

struct BlockMark final : Op {
  BlockMark(BlockId block_id, bool enters) : id(block_id), is_entry(enters) {}
  BlockId id;
  bool is_entry;

  std::string_view name() const override { return is_entry ? "block_entry" : "block_exit"; }
  void backward(Context& context, Tensor&) override {
    if (is_entry) {
      release(context, id, Pass::kBackward);
      ProfilerRange::end();
    } else {
      ProfilerRange::begin(str("block ", id, " backward"));
      acquire(context, id, Pass::kBackward);
    }
  }
};

struct SegmentOp final : Op {
  explicit SegmentOp(BlockId block_id) : id(block_id) {}
  BlockId id;
  BlockBody body;
  std::vector<Tensor> x;  // all that is kept of the forward pass, unless context.parked has it
  std::vector<std::shared_ptr<GradSlot>> gradient;  // one for each result; null: not wanted
  std::vector<Parameter*> held;  // holds one use of each until the segment is differentiated

  std::string_view name() const override { return "segment"; }
  void backward(Context& context, Tensor&) override {
    if (context.parked) {
      x = context.parked->pop();
    }
    std::vector<Tensor> dy, row_sums;
    for (const std::shared_ptr<GradSlot>& slot : gradient) {
      dy.push_back(slot ? std::exchange(slot->grad, Tensor()) : Tensor());
      row_sums.push_back(slot ? std::exchange(slot->row_sums, Tensor()) : Tensor());
    }
    if (std::ranges::none_of(dy, &Tensor::operator bool)) {
      context.tape->release_held(context, held);
      return;
    }
    const ProfilerRange range(str("block ", id, " again and backward"));
    acquire(context, id, Pass::kBackward);
    Tape inner = Tape::replaying(*context.tape);
    Context replay = context;
    replay.tape = &inner;
    replay.recompute = replay.recomputing = true;
    Flow in;
    for (size_t i = 0; i < x.size(); ++i) {
      // A replayed input shares the outer slot, so its gradient goes to the outer variable.
      in.emplace_back(std::move(x[i]), input(i).slot());
    }
    inner.backward(replay, body(replay, std::move(in)), std::move(dy), std::move(row_sums));
    context.tape->release_held(context, held);
    release(context, id, Pass::kBackward);
  }
};

Flow run_segment(Context& context, BlockId id, const BlockBody& body, const Flow& x) {
  auto op = std::make_unique<SegmentOp>(id);
  Tape holding = Tape::holding(*context.tape);
  Context unrecorded = context;
  unrecorded.tape = &holding;
  Flow y = body(unrecorded, x);
  op->held = holding.take_held();
  const bool is_wanted = !op->held.empty() || std::ranges::any_of(x, &Variable::wanted);
  for (Variable& result : y) {
    if (result.wanted()) {
      const bool wants_row_sums = result.slot()->wants_row_sums;
      result = Variable::leaf(result.value());
      result.slot()->wants_row_sums = wants_row_sums;
    }
    op->gradient.push_back(result.slot());
  }
  if (is_wanted) {
    op->body = body;
    op->x = mapped(x, &Variable::value);
    if (context.parked) {
      context.parked->push(std::exchange(op->x, {}));
    }
    context.tape->record_segment(std::move(op), x, y, id);
  }
  return y;
}

Flow forward(Context& context, BlockId id, const BlockBody& body, Flow x) {
  if (!context.tape) {
    return body(context, std::move(x));
  }
  if (context.recompute) {
    return run_segment(context, id, body, x);
  }
  context.tape->record_mark(std::make_unique<BlockMark>(id, true), id);
  Flow y = body(context, std::move(x));
  context.tape->record_mark(std::make_unique<BlockMark>(id, false), id);
  return y;
}

}  // namespace

Flow run_block(Context& context, BlockId id, const BlockBody& body, Flow x) {
  const ProfilerRange range(str("block ", id, " forward"));
  acquire(context, id, Pass::kForward);
  const auto place = [&] {
    const std::string after = context.tape ? context.tape->latest() : "";
    return str("forward of block ", id, after.empty() ? "" : ", after ", after);
  };
  Flow y = say_where(place, [&] { return forward(context, id, body, std::move(x)); });
  if (context.gate) {
    context.gate->see_output(id, y);
  }
  release(context, id, Pass::kForward);
  return y;
}

Flow run_blocks(Context& context, std::span<const Block> blocks, Flow x) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    Context own = context;
    own.recompute = context.recompute && blocks[i].recomputes && i + 1 < blocks.size();
    x = run_block(own, static_cast<BlockId>(i), blocks[i].body, std::move(x));
  }
  return x;
}

}  // namespace tandem

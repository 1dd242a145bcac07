#include "comm/sharding/gradient_sync.h"

#include <algorithm>

#include "comm/sharding/exact/exact_sums.h"
#include "src/core/mapped.h"
#include "src/device/profiler_range.h"

namespace tandem {

GradientSync::GradientSync(const ModelLayout& layout, ParamValues& values, Stream& stream,
                           Memory& memory, const StoreOptions& options)
    : layout_(layout),
      values_(values),
      stream_(stream),
      scratch_(memory.scratch()),
      options_(options),
      buckets_(static_cast<size_t>(layout.buckets())),
      rule_(make_sum_rule({layout, stream, memory, values.timeline()}, options)),
      used_(layout.parameters().size(), true) {
  const auto count = [&](int64_t bucket) {
    return layout_.bucket(bucket).frozen ? 0 : layout_.place(bucket).gradients().count();
  };
  const int64_t all = sum_of(std::views::iota(int64_t{0}, layout_.buckets()), count);
  Carver gradients(memory, all, DType::kF32, MemoryClass::kGradients);
  Carver sums(memory, sums_are_apart() ? all : 0, rule_->dtype(), MemoryClass::kGradients);
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    if (count(i) == 0) {
      continue;
    }
    buckets_[i].gradients = gradients.take(count(i));
    buckets_[i].sums = sums_are_apart() ? sums.take(count(i)) : buckets_[i].gradients;
    if (!layout_.place(i).shards_gradients()) {
      layout_.bind(i, buckets_[i].gradients, &Parameter::grad);
    }
  }
}

void GradientSync::expect(State state, const char* call) const {
  require(state_ == state, [&] {
    constexpr const char* kAfter[] = {"at the beginning", "after begin_step",
                                      "after begin_backward", "after the last finish_backward"};
    return str("GradientSync::", call, " was called ", kAfter[static_cast<size_t>(state_)],
               "; its place is ", kAfter[static_cast<size_t>(state)]);
  });
}

void GradientSync::begin_step() {
  require(state_ != State::kBackward, "GradientSync::begin_step was called inside a micro-step");
  state_ = State::kBegun;
  for (Parameter* parameter : layout_.parameters()) {
    parameter->grad_written = false;
  }
  for (BucketMemory& memory : buckets_) {
    memory.written = false;
  }
  used_.assign(used_.size(), false);
  rule_->begin_step();
}

void GradientSync::begin_backward(bool last_micro_step, const StepNumbers* numbers) {
  expect(State::kBegun, "begin_backward");
  rule_->begin_micro_step(numbers);
  state_ = State::kBackward;
  last_micro_step_ = last_micro_step;
  std::vector<bool> takes_part;
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    // Every micro-step is handled by itself, not only the last.
    const bool each = sums_are_apart() || layout_.place(i).shards_gradients();
    takes_part.push_back(!layout_.bucket(i).frozen && (each || last_micro_step));
    buckets_[i].missing = layout_.bucket(i).parameters();
    for (Parameter* parameter : layout_.parameters_in(i)) {
      parameter->grad_written = parameter->grad_written && !each;
    }
  }
  launch_order_.begin(std::move(takes_part));
}

void GradientSync::acquire(Context& context, BlockId block, Pass pass) {
  values_.acquire(context, block, pass);
  for (const int64_t bucket : layout_.flat().buckets_of(block)) {
    if (pass == Pass::kBackward && layout_.place(bucket).shards_gradients()) {
      open(bucket);
    }
  }
}

void GradientSync::release(Context& context, BlockId block, Pass pass) {
  for (const int64_t bucket : layout_.flat().buckets_of(block)) {
    if (pass == Pass::kBackward && layout_.place(bucket).shards_gradients() &&
        layout_.bucket(bucket).first_block == block && launch_order_.takes_part(bucket)) {
      become_ready(bucket);  // also when a parameter got no gradient
    }
  }
  if (pass == Pass::kBackward && sums_are_apart()) {
    add_shared();
  }
  values_.release(context, block, pass);
}

// Memory for the whole gradients of a bucket, from the first block that needs it on.
void GradientSync::open(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  while (in_flight_.size() > kInFlight || memory.message.addend) {
    finish_oldest();
  }
  if (memory.leaf) {
    return;
  }
  const Range whole = layout_.bucket(bucket).range;
  memory.leaf = Tensor::empty(scratch_, {whole.count()}, DType::kF32, MemoryClass::kStaging);
  zero_gaps(stream_, memory.leaf, layout_.flat().extents(whole, whole.begin));
  layout_.bind(bucket, memory.leaf, &Parameter::grad);
}

void GradientSync::on_final(Context&, Parameter& parameter) {
  expect(State::kBackward, "on_final");
  const int64_t bucket = layout_.flat().segment_of(parameter.id).bucket;
  if (launch_order_.takes_part(bucket) && --buckets_[bucket].missing == 0) {
    become_ready(bucket);
  }
}

// Zeroes a gradient that nobody wrote: old gradients must not be taken for new ones. `last`: the
// step has no later micro-step.
void GradientSync::require_gradient(Parameter& parameter, bool last) {
  if (parameter.grad_written) {
    used_[parameter.id] = true;
    return;
  }
  if (last && !used_[parameter.id] && options_.unused_is_error) {
    fail(ExitCode::kConfig, "parameter ", parameter.name, " got no gradient on rank ",
         layout_.stage().rank(),
         ": the loss does not depend on it; take it out of the model, or set "
         "dist.unused = zero");
  }
  zero(stream_, parameter.grad);
  parameter.grad_written = true;
}

// Adds what a block gave to shared parameters, so that it is not first added to what other blocks
// give. What the last of their blocks gives is added by reduce().
void GradientSync::add_shared() {
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    BucketMemory& memory = buckets_[i];
    const std::span<Parameter* const> parameters = layout_.parameters_in(i);
    const bool is_written = std::ranges::any_of(parameters, &Parameter::grad_written);
    if (layout_.bucket(i).shared && memory.missing > 0 && is_written) {
      for (Parameter* parameter : parameters) {
        require_gradient(*parameter, false);
        parameter->grad_written = false;
      }
      rule_->message(i, memory.gradients, memory.sums, std::exchange(memory.written, true));
    }
  }
}

// A bucket's gradients of this micro-step are complete. Without overlap they wait for
// finish_backward(), unless they are sharded: then their memory must be freed soon.
void GradientSync::become_ready(int64_t bucket) {
  if (options_.overlap || kZero[layout_.zero()].gradients == Placement::kSharded) {
    launch_order_.ready(bucket);
  }
}

// Called when it is the bucket's turn: makes the message, and sends it unless later micro-steps add
// to it.
void GradientSync::reduce(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  const ProfilerRange range(str("bucket ", bucket));
  const bool is_sharded = layout_.place(bucket).shards_gradients();
  if (is_sharded) {
    open(bucket);  // unless a block did: backward skips blocks without gradient
  }
  for (Parameter* parameter : layout_.parameters_in(bucket)) {
    require_gradient(*parameter, last_micro_step_);
  }
  while (rule_->messages_need_memory() && in_flight_.size() > kInFlight) {
    finish_oldest();
  }
  const SumRule::Message message =
      rule_->message(bucket, is_sharded ? memory.leaf : memory.gradients,
                     is_sharded ? Tensor() : memory.sums, memory.written);
  memory.written = memory.written || !is_sharded;
  if (last_micro_step_ || is_sharded) {
    send(bucket, message);
  }
}

void GradientSync::send(int64_t bucket, const SumRule::Message& message) {
  BucketMemory& memory = buckets_[bucket];
  const BucketPlace& place = layout_.place(bucket);
  const Group& group = layout_.group(bucket);
  if (group.size() > 1) {
    const Tensor to = slice_of(message.sum, place.whole.begin, place.state());
    group.stream().wait(stream_.record());
    redistribute(group, {Placement::kPartial, message.addend}, {place.rests.state, to},
                 message.eight_bits);
    memory.message_there = group.stream().record();
  }
  memory.message = message;
  in_flight_.push_back(bucket);
  if (!options_.overlap && place.shards_gradients()) {
    finish_oldest();
  }
}

void GradientSync::finish_oldest() {
  const int64_t bucket = in_flight_.front();
  in_flight_.pop_front();
  BucketMemory& memory = buckets_[bucket];
  const BucketPlace& place = layout_.place(bucket);
  values_.timeline().wait(stream_, memory.message_there);
  const Tensor& sum = memory.message.sum;
  if (place.shards_gradients()) {
    rule_->keep(slice_of(sum, place.whole.begin, place.part), memory.sums, memory.written);
    memory.written = true;
    layout_.bind(bucket, Tensor(), &Parameter::grad);
    memory.leaf = Tensor();
  } else if (sum.dtype() != memory.sums.dtype()) {
    rule_->keep(sum, memory.sums, false);
  }
  memory.message = {};
}

bool GradientSync::finish_backward() {
  expect(State::kBackward, "finish_backward");
  launch_order_.finish();
  while (in_flight_.size() > (last_micro_step_ ? 0 : kInFlight)) {
    finish_oldest();
  }
  state_ = last_micro_step_ ? State::kSummed : State::kBegun;
  if (!last_micro_step_) {
    return true;
  }
  values_.await_all();  // also values of blocks that this step did not use
  if (!rule_->finish_step()) {
    return false;
  }
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    rule_->read(i, buckets_[i].sums, buckets_[i].gradients);
  }
  return true;
}

std::optional<int64_t> GradientSync::unused() const {
  if (options_.unused_is_error) {
    return std::nullopt;
  }
  return std::ranges::count_if(layout_.parameters(), [this](const Parameter* parameter) {
    return parameter->wanted() && !used_[parameter->id];
  });
}

void GradientSync::squared_norm(const Tensor& result, const Tensor& scratch) {
  expect(State::kSummed, "squared_norm");
  std::vector<Tensor> own;
  for (const ModelLayout::Run& run : layout_.runs()) {
    const BucketPlace& place = layout_.place(run.bucket);
    const Range range = intersection(run.range, place.owned);
    if (range.count() > 0) {
      own.push_back(slice_of(buckets_[run.bucket].gradients, place.gradients().begin, range));
    }
  }
  rule_->squared_norm(own, result, scratch);
}

}  // namespace tandem

// The part of the store that brings gradients from layers to sums over ranks, in f32, in bf16 or in
// fixed point.
#include <algorithm>
#include <limits>

#include "comm/param_store.h"
#include "comm/ring.h"
#include "src/core/convert.h"
#include "src/core/copy.h"
#include "src/core/elementwise.h"
#include "src/core/profiler_range.h"
#include "src/core/reduce.h"

namespace tandem {

namespace {

// Messages under way, besides a new one, that hold memory which is given back behind them.
constexpr size_t kInFlight = 1;

// to += from, or to = from.
template <class T>
void add_or_copy(Stream& stream, const Tensor& from, const Tensor& to, bool add) {
  if (!add) {
    copy(stream, from, to);
    return;
  }
  on_device(stream, [&](auto device) {
    kernels::accumulate(device, to.elements(), from.data<T>(), to.data<T>());
  });
}

}  // namespace

void ParamStore::begin_step() {
  for (Parameter* parameter : parameters_) {
    parameter->grad_written = false;
  }
  for (BucketMemory& memory : buckets_) {
    memory.written = false;
  }
  used_.assign(parameters_.size(), false);
  if (exact_) {
    exact_->begin_step();
  }
}

void ParamStore::begin_backward(bool last_micro_step) {
  last_micro_step_ = last_micro_step;
  std::vector<bool> takes_part;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = layout_.buckets()[i];
    const bool each = is_exact() || buckets_[i].shards_gradients();  // micro-step by itself
    takes_part.push_back(!bucket.frozen && (each || last_micro_step));
    buckets_[i].missing = bucket.parameters();
    for (int64_t s = bucket.first_segment; each && s < bucket.last_segment; ++s) {
      parameters_[layout_.segments()[s].parameter]->grad_written = false;
    }
  }
  turns_.begin(std::move(takes_part));
}

// Memory for the gradients of a bucket, from the first of its blocks on.
void ParamStore::open_gradients(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  while (in_flight_.size() > kInFlight || memory.message) {
    finish_oldest_reduction();
  }
  if (memory.leaf) {
    return;
  }
  const Bucket& place = layout_.buckets()[bucket];
  memory.leaf = Tensor::empty(memory_, {place.range.count()}, DType::kF32, MemoryClass::kStaging);
  for (const Range& gap : layout_.gaps(place)) {
    zero(stream_, memory.leaf.slice(gap.begin - place.range.begin, gap.count()));
  }
  bind(bucket, memory.leaf, &Parameter::grad);
}

void ParamStore::on_final(Context&, Parameter& parameter) {
  const int64_t bucket = layout_.segment_of(parameter.id).bucket;
  if (turns_.takes_part(bucket) && --buckets_[bucket].missing == 0) {
    become_ready(bucket);
  }
}

// Old gradients must not pass for new ones.
void ParamStore::settle(Parameter& parameter) {
  if (parameter.grad_written) {
    used_[parameter.id] = true;
    return;
  }
  if (last_micro_step_ && !used_[parameter.id] && options_.unused_is_error) {
    fail(ExitCode::kConfig,
         str("parameter ", parameter.name, " got no gradient on rank ", ranks_.world().rank(),
             ": the loss does not depend on it; take it out of the model, or set "
             "dist.unused = zero"));
  }
  zero(stream_, parameter.grad);
  parameter.grad_written = true;
}

// A bucket's gradients of this micro-step are complete. Without overlap those that may wait do.
void ParamStore::become_ready(int64_t bucket) {
  if (options_.overlap || kZero[options_.zero].gradients == Placement::kSharded) {
    turns_.ready(bucket);
  }
}

std::vector<ExactSegment> ParamStore::exact_segments(int64_t bucket, Range range) const {
  std::vector<ExactSegment> result;
  for (const SegmentPiece& piece :
       layout_.pieces(intersection(range, layout_.buckets()[bucket].range))) {
    result.push_back({.parameter = layout_.segments()[piece.segment].parameter,
                      .offset = piece.offset - range.begin,
                      .count = piece.count});
  }
  return result;
}

// Its turn has come: makes the message, and sends it unless later micro-steps add to it.
void ParamStore::reduce(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  const Bucket& place = layout_.buckets()[bucket];
  const ProfilerRange range(str("bucket ", bucket));
  if (memory.shards_gradients()) {
    open_gradients(bucket);  // unless its blocks did: backward does not visit one without gradient
  }
  for (int64_t i = place.first_segment; i < place.last_segment; ++i) {
    settle(*parameters_[layout_.segments()[i].parameter]);
  }
  memory.message = memory.whole_gradient();
  if (is_exact()) {
    const bool adds_here = !memory.shards_gradients();
    memory.message =
        adds_here ? memory.sums
                  : Tensor::empty(memory_, memory.leaf.shape(), DType::kI64, MemoryClass::kStaging);
    exact_->quantise(memory.whole_gradient(), exact_segments(bucket, place.range), memory.message,
                     adds_here && memory.written);
    memory.written = memory.written || adds_here;
  } else if (options_.wire_dtype != DType::kF32 && !is_alone()) {
    while (in_flight_.size() > kInFlight) {
      finish_oldest_reduction();
    }
    memory.message =
        Tensor::empty(memory_, memory.message.shape(), options_.wire_dtype, MemoryClass::kStaging);
    convert(stream_, memory.whole_gradient(), memory.message);
  }
  if (last_micro_step_ || memory.shards_gradients()) {
    send(bucket);
  } else {
    memory.message = Tensor();
  }
}

void ParamStore::send(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  if (!is_alone()) {
    // Sums of bf16 come out in f32, in the place of what was rounded.
    const bool widens = memory.message.dtype() == DType::kBf16 && memory.shards_state();
    const int64_t begin = memory.part.begin - layout_.buckets()[bucket].range.begin;
    const Tensor part =
        (widens ? memory.whole_gradient() : memory.message).slice(begin, memory.part.count());
    ranks_.stream().wait(stream_.record());
    redistribute(ranks_, {Placement::kPartial, memory.message},
                 {memory.rests.state, memory.shards_state() ? part : memory.message});
    memory.message_there = ranks_.stream().record();
  }
  in_flight_.push_back(bucket);
  if (!options_.overlap && memory.shards_gradients()) {
    finish_oldest_reduction();
  }
}

void ParamStore::finish_oldest_reduction() {
  const int64_t bucket = in_flight_.front();
  in_flight_.pop_front();
  BucketMemory& memory = buckets_[bucket];
  await(memory.message_there);
  if (memory.shards_gradients()) {
    const int64_t begin = memory.part.begin - layout_.buckets()[bucket].range.begin;
    const int64_t count = memory.part.count();
    if (is_exact()) {
      add_or_copy<int64_t>(stream_, memory.message.slice(begin, count), memory.sums,
                           memory.written);
    } else {
      add_or_copy<float>(stream_, memory.leaf.slice(begin, count), memory.gradients,
                         memory.written);
    }
    memory.written = true;
    bind(bucket, Tensor(), &Parameter::grad);
    memory.leaf = Tensor();
  } else if (memory.message.dtype() == DType::kBf16 && !memory.shards_state()) {
    convert(stream_, memory.message, memory.gradients);
  }
  memory.message = Tensor();
}

bool ParamStore::finish_backward(Context&) {
  turns_.finish();
  while (in_flight_.size() > (last_micro_step_ ? 0 : kInFlight)) {
    finish_oldest_reduction();
  }
  if (!last_micro_step_) {
    return true;
  }
  for (int64_t i = 0; i < static_cast<int64_t>(buckets_.size()); ++i) {
    await(buckets_[i].values_there);  // of blocks that this step did not use
  }
  return !exact_ || finish_exact();
}

std::optional<int64_t> ParamStore::unused() const {
  if (options_.unused_is_error) {
    return std::nullopt;
  }
  return std::ranges::count_if(parameters_, [this](const Parameter* parameter) {
    return parameter->wanted() && !used_[parameter->id];
  });
}

bool ParamStore::finish_exact() {
  ranks_.wait(stream_.record());  // which has a deadline
  const ExactSums::Verdict verdict = exact_->judge(ranks_.world());
  if (verdict == ExactSums::Verdict::kAgain) {
    return false;
  }
  is_finite_ = verdict == ExactSums::Verdict::kGood;
  for (int64_t i = 0; is_finite_ && i < static_cast<int64_t>(buckets_.size()); ++i) {
    const BucketMemory& memory = buckets_[i];
    if (layout_.buckets()[i].frozen) {
      continue;
    }
    const Range state = state_range(i);
    const int64_t begin =
        memory.shards_gradients() ? 0 : state.begin - layout_.buckets()[i].range.begin;
    exact_->dequantise(memory.sums.slice(begin, state.count()), exact_segments(i, state),
                       memory.gradients.slice(begin, state.count()));
  }
  return true;
}

void ParamStore::squared_norm(const Tensor& result, const Tensor& scratch) {
  std::vector<Tensor> own;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    const auto& [bucket, place] = shard_places_[shard];
    const Range range = intersection(place, owned_range(bucket));
    if (range.count() > 0) {
      own.push_back(shards_[shard].grad.slice(range.begin - place.begin, range.count()));
    }
  }
  if (exact_) {
    const double all = is_finite_ ? exact_->squared_norm(ranks_.world(), own)
                                  : std::numeric_limits<double>::quiet_NaN();
    Memory host(Device::kCpu);
    const Tensor value = Tensor::empty(host, {1}, DType::kF64, MemoryClass::kData);
    *value.data<double>() = ranks_.world().rank() == 0 ? all : 0;
    copy(stream_, value, result);
    return;
  }
  on_device(stream_, [&](auto device) {
    sum(device, static_cast<const float*>(nullptr), 0, result.data<double>(),
        scratch.data<double>(), false);
    for (const Tensor& gradient : own) {
      tandem::squared_norm(device, gradient.data<float>(), gradient.elements(),
                           result.data<double>(), scratch.data<double>(), true);
    }
  });
}

}  // namespace tandem

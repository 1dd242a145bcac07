#include "comm/sharding/gradient_sync.h"

#include <algorithm>
#include <limits>

#include "src/device/copy.h"
#include "src/device/profiler_range.h"
#include "src/kernels/convert.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

// Reductions in flight before we wait for the oldest, which frees its memory.
constexpr size_t kInFlight = 1;

// to += from, or to = from.
template <class T>
void add_or_copy(Stream& stream, const Tensor& from, const Tensor& to, bool add) {
  if (!add) {
    copy(stream, from, to);
    return;
  }
  on_device(stream, touching(to, from, to), [&](auto device) {
    kernels::add(device, to.elements(), to.data<T>(), from.data<T>(), to.data<T>());
  });
}

}  // namespace

GradientSync::GradientSync(const ModelLayout& layout, ParamValues& values, Stream& stream,
                           Memory& memory, const StoreOptions& options)
    : layout_(layout),
      values_(values),
      stream_(stream),
      memory_(memory),
      options_(options),
      buckets_(static_cast<size_t>(layout.buckets())),
      used_(layout.parameters().size(), true),
      own_(memory) {
  const bool is_exact = options.exact_leaves > 0;
  if (is_exact && options.wire_dtype != DType::kF32) {
    fail(ExitCode::kConfig,
         str("dist.reduce = exact sends 64-bit integers: dist.wire_dtype = ",
             name_of(options.wire_dtype), " excludes it; use dist.wire_dtype = f32"));
  }
  const auto count = [&](int64_t bucket) {
    return layout_.bucket(bucket).frozen ? 0 : layout_.place(bucket).gradients().count();
  };
  int64_t all = 0;
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    all += count(i);
  }
  Carver gradients(memory_, all, DType::kF32, MemoryClass::kGradients);
  Carver sums(memory_, is_exact ? all : 0, DType::kI64, MemoryClass::kGradients);
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    if (count(i) == 0) {
      continue;
    }
    buckets_[i].gradients = gradients.take(count(i));
    if (is_exact) {
      buckets_[i].sums = sums.take(count(i));
    }
    if (!layout_.place(i).shards_gradients()) {
      layout_.bind(i, buckets_[i].gradients, &Parameter::grad);
    }
  }
  if (is_exact) {
    exact_.emplace(stream, memory, static_cast<int64_t>(layout.parameters().size()),
                   options.exact_leaves);
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
  if (exact_) {
    exact_->begin_step();
  }
}

void GradientSync::begin_backward(bool last_micro_step) {
  expect(State::kBegun, "begin_backward");
  state_ = State::kBackward;
  last_micro_step_ = last_micro_step;
  std::vector<bool> takes_part;
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    const Bucket& bucket = layout_.bucket(i);
    // Every micro-step is handled by itself, not only the last.
    const bool each = exact_.has_value() || layout_.place(i).shards_gradients();
    takes_part.push_back(!bucket.frozen && (each || last_micro_step));
    buckets_[i].missing = bucket.parameters();
    for (int64_t s = bucket.first_segment; each && s < bucket.last_segment; ++s) {
      layout_.parameters()[layout_.flat().segments()[s].parameter]->grad_written = false;
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
  values_.release(context, block, pass);
}

// Memory for the whole gradients of a bucket, from the first block that needs it on.
void GradientSync::open(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  while (in_flight_.size() > kInFlight || memory.message) {
    finish_oldest();
  }
  if (memory.leaf) {
    return;
  }
  const Range whole = layout_.bucket(bucket).range;
  memory.leaf = Tensor::empty(memory_, {whole.count()}, DType::kF32, MemoryClass::kStaging);
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

// Zeroes a gradient that nobody wrote: old gradients must not be taken for new ones.
void GradientSync::require_gradient(Parameter& parameter) {
  if (parameter.grad_written) {
    used_[parameter.id] = true;
    return;
  }
  if (last_micro_step_ && !used_[parameter.id] && options_.unused_is_error) {
    fail(ExitCode::kConfig,
         str("parameter ", parameter.name, " got no gradient on rank ", layout_.data().rank(),
             ": the loss does not depend on it; take it out of the model, or set "
             "dist.unused = zero"));
  }
  zero(stream_, parameter.grad);
  parameter.grad_written = true;
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
  const Bucket& whole = layout_.bucket(bucket);
  const ProfilerRange range(str("bucket ", bucket));
  const bool is_sharded = layout_.place(bucket).shards_gradients();
  if (is_sharded) {
    open(bucket);  // unless a block did: backward skips blocks without gradient
  }
  for (int64_t i = whole.first_segment; i < whole.last_segment; ++i) {
    require_gradient(*layout_.parameters()[layout_.flat().segments()[i].parameter]);
  }
  make_message(bucket);
  if (last_micro_step_ || is_sharded) {
    send(bucket);
  } else {
    memory.message = Tensor();
  }
}

void GradientSync::make_message(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  const Tensor& gradient = memory.whole_gradient();
  const auto room = [&](DType dtype) {
    return Tensor::empty(memory_, gradient.shape(), dtype, MemoryClass::kStaging);
  };
  if (exact_) {
    const bool adds_here = !layout_.place(bucket).shards_gradients();
    memory.message = adds_here ? memory.sums : room(DType::kI64);
    const Range whole = layout_.bucket(bucket).range;
    exact_->quantise(gradient, layout_.flat().extents(whole, whole.begin), memory.message,
                     adds_here && memory.written);
    memory.written = memory.written || adds_here;
  } else if (options_.wire_dtype != DType::kF32 && !layout_.is_alone()) {
    while (in_flight_.size() > kInFlight) {
      finish_oldest();
    }
    memory.message = room(options_.wire_dtype);
    convert(stream_, gradient, memory.message);
  } else {
    memory.message = gradient;
  }
}

void GradientSync::send(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  const BucketPlace& place = layout_.place(bucket);
  if (!layout_.is_alone()) {
    // reduce_scatter of bf16 gives f32, which goes where the unrounded gradients were.
    const bool widens = memory.message.dtype() == DType::kBf16 && place.shards_state();
    const Tensor part =
        slice_of(widens ? memory.whole_gradient() : memory.message, place.whole.begin, place.part);
    const Hierarchy& data = layout_.data();
    data.stream().wait(stream_.record());
    redistribute(data, {Placement::kPartial, memory.message},
                 {place.rests.state, place.shards_state() ? part : memory.message});
    memory.message_there = data.stream().record();
  }
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
  if (place.shards_gradients()) {
    const auto part = [&](const Tensor& whole) {
      return slice_of(whole, place.whole.begin, place.part);
    };
    if (exact_) {
      add_or_copy<int64_t>(stream_, part(memory.message), memory.sums, memory.written);
    } else {
      add_or_copy<float>(stream_, part(memory.leaf), memory.gradients, memory.written);
    }
    memory.written = true;
    layout_.bind(bucket, Tensor(), &Parameter::grad);
    memory.leaf = Tensor();
  } else if (memory.message.dtype() == DType::kBf16 && !place.shards_state()) {
    convert(stream_, memory.message, memory.gradients);
  }
  memory.message = Tensor();
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
  return !exact_ || finish_exact();
}

std::optional<int64_t> GradientSync::unused() const {
  if (options_.unused_is_error) {
    return std::nullopt;
  }
  return std::ranges::count_if(layout_.parameters(), [this](const Parameter* parameter) {
    return parameter->wanted() && !used_[parameter->id];
  });
}

bool GradientSync::finish_exact() {
  layout_.data().wait(stream_.record());  // has a deadline
  const ExactSums::Verdict verdict = values_.timeline().during(
      stream_, Phase::kCommunication, [&] { return exact_->judge(layout_.data().control()); });
  if (verdict == ExactSums::Verdict::kAgain) {
    return false;
  }
  is_finite_ = verdict == ExactSums::Verdict::kGood;
  for (int64_t i = 0; is_finite_ && i < layout_.buckets(); ++i) {
    if (layout_.bucket(i).frozen) {
      continue;
    }
    const BucketPlace& place = layout_.place(i);
    const auto state = [&](const Tensor& flat) {
      return slice_of(flat, place.gradients().begin, place.state());
    };
    exact_->dequantise(state(buckets_[i].sums),
                       layout_.flat().extents(place.state(), place.state().begin),
                       state(buckets_[i].gradients));
  }
  return true;
}

void GradientSync::squared_norm(const Tensor& result, const Tensor& scratch) {
  expect(State::kSummed, "squared_norm");
  std::vector<Tensor> own;
  Work work;
  for (const ModelLayout::Run& run : layout_.runs()) {
    const BucketPlace& place = layout_.place(run.bucket);
    const Range range = intersection(run.range, place.owned);
    if (range.count() > 0) {
      own.push_back(slice_of(buckets_[run.bucket].gradients, place.gradients().begin, range));
      work += touching(own.back());
    }
  }
  if (exact_) {
    Collectives& data = layout_.data().collectives();
    const double all = is_finite_ ? exact_->squared_norm(data, own, values_.timeline())
                                  : std::numeric_limits<double>::quiet_NaN();
    Memory host(Device::kCpu);
    const Tensor value = Tensor::empty(host, {1}, DType::kF64, MemoryClass::kData);
    *value.data<double>() = data.rank() == 0 ? all : 0;
    copy(stream_, value, result);
    return;
  }
  ArrayList<FlatArray> list{};
  if (stream_.device() == Device::kCuda) {  // a dry stream's memory is counted, too
    std::vector<FlatArray> arrays;
    for (const Tensor& gradient : own) {
      arrays.push_back({gradient.data<float>(), gradient.elements()});
    }
    list = own_.list(stream_, arrays);
  }
  on_device(stream_, work, [&]<class D>(D device) {
    if constexpr (std::is_same_v<D, Cuda>) {
      tandem::squared_norm(device, list, result.data<double>(), scratch.data<double>());
    } else {
      *result.data<double>() = 0;
      for (const Tensor& gradient : own) {
        tandem::squared_norm(device, gradient.data<float>(), gradient.elements(),
                             result.data<double>(), scratch.data<double>(), true);
      }
    }
  });
}

}  // namespace tandem

#include "comm/sharding/param_values.h"

#include <algorithm>
#include <utility>

#include "src/device/copy.h"
#include "src/device/profiler_range.h"
#include "src/kernels/convert.h"

namespace tandem {

ParamValues::ParamValues(const ModelLayout& layout, Stream& stream, Memory& memory,
                         const StoreOptions& options, Memory* host)
    : layout_(layout), stream_(stream), scratch_(memory.scratch()), options_(options) {
  const auto has_copy = [&](int64_t bucket) {
    const BucketPlace& place = layout_.place(bucket);
    const bool is_rounded_in_place =
        options_.gather_int8 && place.shards_state() && !place.shards_values();
    return !layout_.bucket(bucket).frozen && (dtype() != DType::kF32 || is_rounded_in_place);
  };
  int64_t values = 0, masters = 0;
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    values += layout_.place(i).values().count();
    masters += has_copy(i) ? layout_.place(i).state().count() : 0;
  }
  Carver all_values(memory, values, dtype(), MemoryClass::kParameters);
  // Masters of f32 values are gathered in eight bits, which the device does.
  const bool are_on_host = options_.offload_run > 0 && dtype() != DType::kF32;
  require(host || !are_on_host, "ParamValues: no host memory to offload to");
  Carver all_masters(are_on_host ? *host : memory, masters, DType::kF32, MemoryClass::kMasters);
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    const BucketPlace& place = layout_.place(i);
    BucketMemory& bucket = buckets_.emplace_back();
    bucket.values = all_values.take(place.values().count());
    bucket.masters =
        has_copy(i) ? all_masters.take(place.state().count()) : state_in(i, bucket.values);
    if (!place.shards_values()) {
      layout_.bind(i, bucket.values, &Parameter::value);
    }
  }
}

// The values of the range whose state is on this rank.
Tensor ParamValues::state_in(int64_t bucket, const Tensor& values) const {
  const BucketPlace& place = layout_.place(bucket);
  return slice_of(values, place.values().begin, place.state());
}

Tensor ParamValues::working(int64_t bucket) const {
  const BucketMemory& memory = buckets_[bucket];
  return memory.masters.dtype() == dtype() ? Tensor() : state_in(bucket, memory.values);
}

void ParamValues::initialize(uint64_t seed) {
  Memory host(Device::kCpu);
  Stream host_stream = Stream::compute(Device::kCpu);
  for (const Segment& segment : layout_.flat().segments()) {
    Parameter start = *layout_.parameters()[segment.parameter];
    start.value = Tensor::empty(host, {segment.count}, DType::kF32, MemoryClass::kData);
    tandem::initialize(start, seed);
    const Range state = layout_.place(segment.bucket).state();
    const Range here = intersection({segment.offset, segment.offset + segment.count}, state);
    if (here.count() > 0) {
      const Tensor masters = slice_of(buckets_[segment.bucket].masters, state.begin, here);
      copy_rounded(masters.device() == Device::kCpu ? host_stream : stream_,
                   slice_of(start.value, segment.offset, here), masters);
    }
  }
  publish();
}

void ParamValues::publish() {
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    if (const Tensor rounded = working(i)) {
      round(buckets_[i].masters, rounded);
    }
  }
  outdate();
}

// Masters that rest on the host come to the device in parts.
void ParamValues::round(const Tensor& masters, const Tensor& rounded) {
  if (masters.device() == rounded.device()) {
    return convert(stream_, masters, rounded);
  }
  for (int64_t at = 0; at < masters.elements(); at += options_.offload_run) {
    const int64_t count = std::min(options_.offload_run, masters.elements() - at);
    const Tensor here = Tensor::empty(scratch_, {count}, DType::kF32, MemoryClass::kStaging);
    copy(stream_, masters.slice(at, count), here);
    convert(stream_, here, rounded.slice(at, count));
  }
}

void ParamValues::outdate(Update update) {
  are_outdated_ = true;
  update_ = std::move(update);
}

void ParamValues::gather() {
  if (!std::exchange(are_outdated_, false)) {
    return;
  }
  const Update update = std::exchange(update_, {});
  const Event now = stream_.record();
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    BucketMemory& memory = buckets_[i];
    memory.late = update && !layout_.bucket(i).frozen ? std::optional(update(i)) : std::nullopt;
    memory.updated = memory.late;
    if (layout_.place(i).shards_values()) {
      memory.gathered = Tensor();  // from before the update
    } else if (layout_.place(i).shards_state()) {
      start_gather(i, memory.values, memory.updated.value_or(now));
      if (!options_.overlap) {
        await(memory);
      }
    }
  }
}

void ParamValues::await(BucketMemory& bucket) {
  timeline_.wait(stream_, bucket.updated, Phase::kCopy);
  timeline_.wait(stream_, bucket.arrive);
}

void ParamValues::start_gather(int64_t bucket, const Tensor& whole, const Event& ready) {
  const ProfilerRange range(str("values of bucket ", bucket));
  BucketMemory& memory = buckets_[bucket];
  const Tensor narrow = working(bucket);
  const Tensor part = narrow ? narrow : memory.masters;
  const Group& group = layout_.group(bucket);
  group.stream().wait(ready);
  redistribute(group, {Placement::kSharded, part}, {Placement::kReplicated, whole},
               options_.gather_int8 ? EightBits(BlockRounding{}) : EightBits());
  memory.arrive = group.stream().record();
}

void ParamValues::await_all() {
  for (BucketMemory& memory : buckets_) {
    await(memory);
  }
}

void ParamValues::fetch(int64_t block) {
  for (const int64_t bucket : layout_.flat().buckets_of(block)) {
    BucketMemory& memory = buckets_[bucket];
    if (layout_.place(bucket).shards_values() && !memory.gathered) {
      memory.gathered = Tensor::empty(scratch_, {layout_.bucket(bucket).range.count()}, dtype(),
                                      MemoryClass::kStaging);
      if (memory.late) {
        layout_.group(bucket).stream().wait(*memory.late);
      }
      start_gather(bucket, memory.gathered, stream_.record());
    }
  }
}

bool ParamValues::has_sharded(int64_t block) const {
  return std::ranges::any_of(layout_.flat().buckets_of(block), [this](int64_t bucket) {
    return layout_.place(bucket).shards_values();
  });
}

// The next block with sharded values in this pass; -1 if there is none.
int64_t ParamValues::next_sharded(int64_t block, Pass pass) const {
  const int step = pass == Pass::kForward ? 1 : -1;
  const int64_t first = pass == Pass::kForward ? 0 : layout_.first_trained_block();
  for (int64_t i = block + step; i >= first && i < layout_.flat().blocks(); i += step) {
    if (has_sharded(i)) {
      return i;
    }
  }
  return -1;
}

// Frees values that were fetched for a pass in the other direction.
void ParamValues::drop_all_but(int64_t block, int64_t next) {
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    const int64_t owner = layout_.bucket(i).first_block;
    if (buckets_[i].gathered && owner != block && owner != next) {
      await(buckets_[i]);
      buckets_[i].gathered = Tensor();
    }
  }
}

void ParamValues::acquire(Context&, BlockId block, Pass pass) {
  require(!are_outdated_, "ParamValues::acquire: values were written since the last gather()");
  const bool is_sharded = has_sharded(block);
  const int64_t next = next_sharded(block, pass);
  if (is_sharded) {
    drop_all_but(block, next);
    fetch(block);
  }
  for (const int64_t bucket : layout_.flat().buckets_of(block)) {
    await(buckets_[bucket]);
    if (layout_.place(bucket).shards_values()) {
      layout_.bind(bucket, buckets_[bucket].gathered, &Parameter::value);
    }
  }
  if (is_sharded && next >= 0 && options_.overlap) {
    fetch(next);
  }
}

void ParamValues::release(Context& context, BlockId block, Pass pass) {
  // The last block's values are kept: backward begins with it.
  const bool is_kept = pass == Pass::kForward && context.tape != nullptr &&
                       block >= layout_.first_trained_block() &&
                       next_sharded(block, Pass::kForward) < 0;
  for (const int64_t bucket : layout_.flat().buckets_of(block)) {
    if (layout_.place(bucket).shards_values() && !is_kept) {
      layout_.bind(bucket, Tensor(), &Parameter::value);
      buckets_[bucket].gathered = Tensor();
    }
  }
}

std::vector<ParamValues::Weights> ParamValues::weights_here(bool only_saved) const {
  std::vector<Weights> all;
  for (int64_t i = 0; i < layout_.buckets(); ++i) {
    const BucketPlace& place = layout_.place(i);
    const Range state = place.state();
    for (const Extent& extent :
         layout_.flat().extents(only_saved ? place.saved : state, state.begin)) {
      all.push_back({.parameter = layout_.parameters()[extent.parameter],
                     .offset = extent.in_parameter,
                     .data = buckets_[i].masters.slice(extent.in_flat, extent.count)});
    }
  }
  return all;
}

}  // namespace tandem

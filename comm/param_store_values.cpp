// The part of the store that brings values to where layers read them: gathers behind the optimizer
// (stages 1 and 2) or around each block (stage 3).
#include <algorithm>

#include "comm/param_store.h"
#include "src/core/convert.h"

namespace tandem {

void ParamStore::publish() {
  if (options_.dtype != DType::kF32) {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      const BucketMemory& memory = buckets_[i];
      const bool is_slice = memory.shards_state() && !memory.shards_values();
      const int64_t begin = is_slice ? memory.part.begin - layout_.buckets()[i].range.begin : 0;
      convert(stream_, memory.masters, memory.values.slice(begin, memory.masters.elements()));
    }
  }
  gather();
}

void ParamStore::gather() {
  for (int64_t i = 0; i < static_cast<int64_t>(buckets_.size()); ++i) {
    BucketMemory& memory = buckets_[i];
    if (memory.shards_values()) {
      memory.gathered = Tensor();  // of the values before
    } else if (memory.shards_state()) {
      start_gather(i, memory.values);
      if (!options_.overlap) {
        await(memory.values_there);
      }
    }
  }
}

// This rank's part is in `values` already.
void ParamStore::start_gather(int64_t bucket, const Tensor& whole) {
  BucketMemory& memory = buckets_[bucket];
  const int64_t begin = memory.part.begin - layout_.buckets()[bucket].range.begin;
  const Tensor part =
      memory.shards_values() ? memory.values : whole.slice(begin, memory.part.count());
  ranks_.stream().wait(stream_.record());
  redistribute(ranks_, {Placement::kSharded, part}, {Placement::kReplicated, whole});
  memory.values_there = ranks_.stream().record();
}

// Later work on the compute stream may use what was under way, if anything was.
void ParamStore::await(std::optional<Event>& communication) {
  if (communication) {
    exposure_.wait(stream_, *std::exchange(communication, std::nullopt));
  }
}

void ParamStore::fetch(int64_t bucket) {
  BucketMemory& memory = buckets_[bucket];
  if (!memory.gathered) {
    memory.gathered = Tensor::empty(memory_, {layout_.buckets()[bucket].range.count()},
                                    options_.dtype, MemoryClass::kStaging);
    start_gather(bucket, memory.gathered);
  }
}

// The next bucket of sharded values behind (step 1) or before (-1) this one; -1 when there is none.
int64_t ParamStore::next_sharded(int64_t bucket, int step) const {
  const auto count = static_cast<int64_t>(buckets_.size());
  for (int64_t i = bucket + step; i >= 0 && i < count; i += step) {
    if (buckets_[i].shards_values()) {
      return i;
    }
  }
  return -1;
}

bool ParamStore::is_collective() const {
  return std::ranges::any_of(buckets_, &BucketMemory::shards_values);
}

void ParamStore::acquire(Context&, BlockId block, Pass pass) {
  for (const int64_t bucket : layout_.buckets_of(block)) {
    BucketMemory& memory = buckets_[bucket];
    if (memory.shards_values()) {
      const int64_t next = next_sharded(bucket, pass == Pass::kForward ? 1 : -1);
      for (int64_t i = 0; i < static_cast<int64_t>(buckets_.size()); ++i) {
        if (i != bucket && i != next && buckets_[i].gathered) {  // fetched for another direction
          await(buckets_[i].values_there);
          buckets_[i].gathered = Tensor();
        }
      }
      fetch(bucket);
      await(memory.values_there);
      bind(bucket, memory.gathered, &Parameter::value);
      if (next >= 0 && options_.overlap) {
        fetch(next);
      }
    } else {
      await(memory.values_there);
    }
    if (pass == Pass::kBackward && memory.shards_gradients()) {
      open_gradients(bucket);
    }
  }
}

void ParamStore::release(Context& context, BlockId block, Pass pass) {
  for (const int64_t bucket : layout_.buckets_of(block)) {
    BucketMemory& memory = buckets_[bucket];
    if (pass == Pass::kBackward && memory.shards_gradients() &&
        layout_.buckets()[bucket].first_block == block && turns_.takes_part(bucket)) {
      become_ready(bucket);  // also when a parameter got no gradient
    }
    // Backward begins where forward ends.
    const bool is_kept =
        pass == Pass::kForward && context.tape != nullptr && next_sharded(bucket, 1) < 0;
    if (memory.shards_values() && !is_kept) {
      bind(bucket, Tensor(), &Parameter::value);
      memory.gathered = Tensor();
    }
  }
}

}  // namespace tandem

// The part of the store that brings values to where layers read them: gathers behind the optimizer
// (stages 1 and 2) or around each block (stage 3).
#include <algorithm>

#include "comm/param_store.h"
#include "src/core/convert.h"

namespace tandem {

void ParamStore::publish() {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const BucketMemory& memory = buckets_[i];
    if (memory.masters.dtype() != memory.values.dtype()) {
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

bool ParamStore::has_sharded(int64_t block) const {
  return std::ranges::any_of(layout_.buckets_of(block),
                             [this](int64_t bucket) { return buckets_[bucket].shards_values(); });
}

void ParamStore::fetch_block(int64_t block) {
  for (const int64_t bucket : layout_.buckets_of(block)) {
    if (buckets_[bucket].shards_values()) {
      fetch(bucket);
    }
  }
}

// The next block with sharded values that this pass comes to; -1 when there is none.
int64_t ParamStore::next_sharded(int64_t block, Pass pass) const {
  const int step = pass == Pass::kForward ? 1 : -1;
  const int64_t first = pass == Pass::kForward ? 0 : first_trained_;
  for (int64_t i = block + step; i >= first && i < std::ssize(blocks_); i += step) {
    if (has_sharded(i)) {
      return i;
    }
  }
  return -1;
}

bool ParamStore::is_collective() const {
  return std::ranges::any_of(buckets_, &BucketMemory::shards_values);
}

// Drops what was fetched for another direction.
void ParamStore::drop_all_but(int64_t block, int64_t next) {
  for (int64_t i = 0; i < std::ssize(buckets_); ++i) {
    const int64_t owner = layout_.buckets()[i].first_block;
    if (buckets_[i].gathered && owner != block && owner != next) {
      await(buckets_[i].values_there);
      buckets_[i].gathered = Tensor();
    }
  }
}

void ParamStore::acquire(Context&, BlockId block, Pass pass) {
  const bool is_sharded = has_sharded(block);
  const int64_t next = next_sharded(block, pass);
  if (is_sharded) {
    drop_all_but(block, next);
    fetch_block(block);
  }
  for (const int64_t bucket : layout_.buckets_of(block)) {
    BucketMemory& memory = buckets_[bucket];
    await(memory.values_there);
    if (memory.shards_values()) {
      bind(bucket, memory.gathered, &Parameter::value);
    }
  }
  if (is_sharded && next >= 0 && options_.overlap) {
    fetch_block(next);
  }
  for (const int64_t bucket : layout_.buckets_of(block)) {
    if (pass == Pass::kBackward && buckets_[bucket].shards_gradients()) {
      open_gradients(bucket);
    }
  }
}

void ParamStore::release(Context& context, BlockId block, Pass pass) {
  // Backward begins where forward ends.
  const bool is_kept = pass == Pass::kForward && context.tape != nullptr &&
                       block >= first_trained_ && next_sharded(block, Pass::kForward) < 0;
  for (const int64_t bucket : layout_.buckets_of(block)) {
    BucketMemory& memory = buckets_[bucket];
    if (pass == Pass::kBackward && memory.shards_gradients() &&
        layout_.buckets()[bucket].first_block == block && turns_.takes_part(bucket)) {
      become_ready(bucket);  // also when a parameter got no gradient
    }
    if (memory.shards_values() && !is_kept) {
      bind(bucket, Tensor(), &Parameter::value);
      memory.gathered = Tensor();
    }
  }
}

}  // namespace tandem

#include "comm/sharding/model_layout.h"

#include <algorithm>

#include "comm/transport/ring.h"
#include "src/device/ranks/agreement.h"

namespace tandem {

namespace {

// With one shard every stage is stage 0.
int stage_of(int zero, const Group& group) {
  const int stages = static_cast<int>(kZero.size());
  if (zero < 0 || zero >= stages) {
    fail(ExitCode::kConfig, "dist.zero = ", zero, ": no such stage, use 0 to ", stages - 1);
  }
  return group.parts() == 1 ? 0 : zero;
}

}  // namespace

ModelLayout::ModelLayout(std::vector<BlockParameters> blocks, const ModelGroups& groups,
                         Device device, const StoreOptions& options)
    : groups_(groups),
      device_(device),
      zero_(stage_of(options.zero, groups.stage)),
      // Buffers that are freed after use are freed by blocks, so their buckets must not cross
      // blocks.
      flat_(blocks, {.whole = {groups.stage.size(), groups.stage.parts()},
                     .cut = {groups.data.size(), groups.data.parts()},
                     .device = device,
                     .bucket_bytes = options.bucket_bytes,
                     .split_blocks = kZero[zero_].gradients != Placement::kSharded,
                     .merge_blocks = kZero[zero_].parameters != Placement::kSharded,
                     .matrices = options.matrices}) {
  for (const BlockParameters& block : blocks) {
    parameters_.insert(parameters_.end(), block.parameters.begin(), block.parameters.end());
  }
  check_equal(stage().control(), "the layout of the parameters", flat_.text());
  for (const Segment& segment : flat_.segments()) {
    Parameter& parameter = *parameters_[segment.parameter];
    parameter.id = segment.parameter;
    by_offset_.push_back(&parameter);
    parameter.value = parameter.grad = Tensor();
    parameter.grad_written = false;
  }
  for (const Bucket& bucket : flat_.buckets()) {
    places_.push_back(place_of(bucket));
    if (!bucket.frozen) {
      first_trained_block_ = std::min(first_trained_block_, bucket.first_block);
    }
  }
}

// Shared parameters are always whole; only their state is sharded. A frozen bucket has no
// gradients, and its values are its state.
BucketPlace ModelLayout::place_of(const Bucket& bucket) const {
  const Group& group = group_of(bucket);
  const int zero = stage_of(zero_, group);
  BucketPlace place{.rests = kZero[bucket.shared ? std::min(zero, 1) : zero],
                    .whole = bucket.range,
                    .part = flat_.part(bucket, group.part())};
  if (bucket.frozen) {
    place.rests.gradients = Placement::kReplicated;
    place.rests.state = place.rests.parameters;
  }
  const RingChunks shares{place.part.count(), group.replicas()};
  place.owned.begin = place.part.begin + shares.first(group.replica());
  place.owned.end = place.owned.begin + shares.count(group.replica());
  const RingChunks copies{place.owned.count(), groups_.islands ? groups_.islands->size() : 1};
  place.saved.begin = place.owned.begin + copies.first(groups_.island());
  place.saved.end = place.saved.begin + copies.count(groups_.island());
  return place;
}

std::span<Parameter* const> ModelLayout::parameters_in(int64_t bucket) const {
  const Bucket& all = flat_.buckets()[bucket];
  return std::span(by_offset_)
      .subspan(static_cast<size_t>(all.first_segment), static_cast<size_t>(all.parameters()));
}

void ModelLayout::bind(int64_t bucket, const Tensor& flat, Tensor Parameter::*view) const {
  const Bucket& all = flat_.buckets()[bucket];
  for (int64_t i = all.first_segment; i < all.last_segment; ++i) {
    const Segment& segment = flat_.segments()[i];
    Parameter& parameter = *parameters_[segment.parameter];
    parameter.*view = flat ? flat.slice(segment.offset - all.range.begin, segment.stored)
                                 .reshape(stored_shape(parameter, device_))
                           : Tensor();
  }
}

std::vector<ModelLayout::Run> ModelLayout::runs(int64_t most) const {
  std::vector<Run> runs;
  for (int64_t i = 0; i < buckets(); ++i) {
    const Bucket& all = bucket(i);
    const Run kinds[] = {
        {.range = {all.range.begin, all.first_other}, .decay = true, .matrix = true},
        {.range = {all.first_other, all.first_plain}, .decay = true},
        {.range = {all.first_plain, all.range.end}}};
    for (Run run : kinds) {
      run.bucket = i;
      const Range range = intersection(run.range, places_[i].state());
      for (int64_t at = range.begin; at < range.end && !all.frozen;) {
        const int64_t end = most > 0 ? std::min(at + most, range.end) : range.end;
        run.range = {at, end};
        runs.push_back(run);
        at = end;
      }
    }
  }
  return runs;
}

}  // namespace tandem

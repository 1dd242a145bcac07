#include "comm/param_store.h"

#include <algorithm>
#include <limits>

#include "comm/agreement.h"
#include "comm/ring.h"
#include "src/core/convert.h"

namespace tandem {

namespace {

// Sharding over one part is none.
int stage_of(const ParamStore::Options& options, const Hierarchy& ranks) {
  const int stages = static_cast<int>(kZero.size());
  if (options.zero < 0 || options.zero >= stages) {
    fail(ExitCode::kConfig,
         str("dist.zero = ", options.zero, ": no such stage, use 0 to ", stages - 1));
  }
  return ranks.parts() == 1 ? 0 : options.zero;
}

ParamStore::Options resolved(ParamStore::Options options, const Hierarchy& ranks) {
  if (options.exact_leaves > 0 && options.wire_dtype != DType::kF32) {
    fail(ExitCode::kConfig,
         str("dist.reduce = exact sends 64-bit integers: dist.wire_dtype = ",
             name_of(options.wire_dtype), " excludes it; use dist.wire_dtype = f32"));
  }
  options.zero = stage_of(options, ranks);
  return options;
}

std::vector<Parameter*> in_forward_order(const std::vector<BlockParameters>& blocks) {
  std::vector<Parameter*> result;
  for (const BlockParameters& block : blocks) {
    result.insert(result.end(), block.parameters.begin(), block.parameters.end());
  }
  return result;
}

// What is given back behind its use is given back by blocks.
FlatLayout::Options layout_options(const ParamStore::Options& options, const Hierarchy& ranks) {
  return {.ranks = ranks.world().size(),
          .parts = ranks.parts(),
          .bucket_bytes = options.bucket_bytes,
          .split_blocks = kZero[options.zero].gradients != Placement::kSharded,
          .merge_blocks = kZero[options.zero].parameters != Placement::kSharded};
}

// A frozen bucket has no gradients, and its values are its state. What other blocks use too is
// there all the time, and shards its state alone.
Resting resting(const Bucket& bucket, int zero) {
  const Resting& rests = kZero[bucket.shared ? std::min(zero, 1) : zero];
  return bucket.frozen ? Resting{rests.parameters, Placement::kReplicated, rests.parameters}
                       : rests;
}

int64_t first_trained_block(const FlatLayout& layout) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const Bucket& bucket : layout.buckets()) {
    first = bucket.frozen ? first : std::min(first, bucket.first_block);
  }
  return first;
}

// One allocation, handed out in pieces.
class Carver {
 public:
  Carver(Memory& memory, int64_t elements, DType dtype, MemoryClass memory_class)
      : all_(elements > 0 ? Tensor::zeros(memory, {elements}, dtype, memory_class) : Tensor()) {}
  Tensor take(int64_t elements) {
    at_ += elements;
    return all_.slice(at_ - elements, elements);
  }

 private:
  Tensor all_;
  int64_t at_ = 0;
};

}  // namespace

ParamStore::ParamStore(std::vector<BlockParameters> blocks, Hierarchy& ranks, Stream& stream,
                       Memory& memory, const Options& options)
    : ranks_(ranks),
      stream_(stream),
      memory_(memory),
      options_(resolved(options, ranks)),
      blocks_(std::move(blocks)),
      parameters_(in_forward_order(blocks_)),
      layout_(blocks_, layout_options(options_, ranks)),
      first_trained_(first_trained_block(layout_)),
      used_(parameters_.size(), true) {
  check_equal(ranks.world(), "the layout of the parameters", layout_.text());
  for (const Segment& segment : layout_.segments()) {
    Parameter& parameter = *parameters_[segment.parameter];
    parameter.id = segment.parameter;
    parameter.value = parameter.grad = Tensor();
    parameter.grad_written = false;
  }
  allocate();
  add_shards();
  if (is_exact()) {
    exact_.emplace(stream, memory, static_cast<int64_t>(parameters_.size()), options_.exact_leaves);
  }
}

void ParamStore::allocate() {
  const bool rounds = options_.dtype != DType::kF32;
  int64_t values = 0, masters = 0, gradients = 0;
  for (const Bucket& bucket : layout_.buckets()) {
    BucketMemory& memory = buckets_.emplace_back();
    memory.rests = resting(bucket, options_.zero);
    memory.part = layout_.part(bucket, ranks_.part());
    const int64_t whole = bucket.range.count(), part = memory.part.count();
    values += memory.shards_values() ? part : whole;
    if (!bucket.frozen) {
      masters += rounds ? (memory.shards_state() ? part : whole) : 0;
      gradients += memory.shards_gradients() ? part : whole;
    }
  }
  Carver all_values(memory_, values, options_.dtype, MemoryClass::kParameters);
  Carver all_masters(memory_, masters, DType::kF32, MemoryClass::kMasters);
  Carver all_gradients(memory_, gradients, DType::kF32, MemoryClass::kGradients);
  Carver all_sums(memory_, is_exact() ? gradients : 0, DType::kI64, MemoryClass::kGradients);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    BucketMemory& memory = buckets_[i];
    const Bucket& bucket = layout_.buckets()[i];
    const auto index = static_cast<int64_t>(i);
    const int64_t whole = bucket.range.count(), part = memory.part.count();
    memory.values = all_values.take(memory.shards_values() ? part : whole);
    if (!memory.shards_values()) {
      bind(index, memory.values, &Parameter::value);
    }
    if (rounds && !bucket.frozen) {
      memory.masters = all_masters.take(memory.shards_state() ? part : whole);
    } else {
      const bool is_slice = memory.shards_state() && !memory.shards_values();
      memory.masters = is_slice ? memory.values.slice(memory.part.begin - bucket.range.begin, part)
                                : memory.values;
    }
    if (bucket.frozen) {
      continue;
    }
    memory.gradients = all_gradients.take(memory.shards_gradients() ? part : whole);
    if (is_exact()) {
      memory.sums = all_sums.take(memory.gradients.elements());
    }
    if (!memory.shards_gradients()) {
      bind(index, memory.gradients, &Parameter::grad);
    }
  }
}

// Gives the bucket's parameters views of it; of nothing when `flat` is nothing.
void ParamStore::bind(int64_t bucket, const Tensor& flat, Tensor Parameter::*view) const {
  const Bucket& place = layout_.buckets()[bucket];
  for (int64_t i = place.first_segment; i < place.last_segment; ++i) {
    const Segment& segment = layout_.segments()[i];
    Parameter& parameter = *parameters_[segment.parameter];
    parameter.*view =
        flat
            ? flat.slice(segment.offset - place.range.begin, segment.count).reshape(parameter.shape)
            : Tensor();
  }
}

Range ParamStore::state_range(int64_t bucket) const {
  return buckets_[bucket].shards_state() ? buckets_[bucket].part : layout_.buckets()[bucket].range;
}

Range ParamStore::owned_range(int64_t bucket) const {
  const Range part = buckets_[bucket].part;
  const Parts shares{part.count(), ranks_.replicas()};
  const int64_t begin = part.begin + shares.first(ranks_.replica());
  return {begin, begin + shares.count(ranks_.replica())};
}

void ParamStore::add_shards() {
  for (int64_t i = 0; i < static_cast<int64_t>(buckets_.size()); ++i) {
    const BucketMemory& memory = buckets_[i];
    const Bucket& bucket = layout_.buckets()[i];
    if (bucket.frozen) {
      continue;
    }
    const Range own = state_range(i);
    const auto view = [&](const Tensor& flat, bool is_part, Range range) {
      return flat.slice(range.begin - (is_part ? memory.part.begin : bucket.range.begin),
                        range.count());
    };
    for (const bool decay : {true, false}) {
      const Range group = decay ? Range{bucket.range.begin, bucket.first_plain}
                                : Range{bucket.first_plain, bucket.range.end};
      const Range range = intersection(group, own);
      if (range.count() == 0) {
        continue;
      }
      shards_.push_back({.value = view(memory.masters, memory.shards_state(), range),
                         .grad = view(memory.gradients, memory.shards_gradients(), range),
                         .decay = decay});
      if (options_.dtype != DType::kF32) {
        shards_.back().working = view(memory.values, memory.shards_values(), range);
      }
      shard_places_.push_back({i, range});
    }
  }
}

void ParamStore::initialize(uint64_t seed) {
  Memory host(Device::kCpu);
  for (const Segment& segment : layout_.segments()) {
    Parameter start = *parameters_[segment.parameter];
    start.value = Tensor::empty(host, {segment.count}, DType::kF32, MemoryClass::kData);
    tandem::initialize(start, seed);
    const Range state = state_range(segment.bucket);
    const Range here = intersection({segment.offset, segment.offset + segment.count}, state);
    if (here.count() > 0) {
      copy_rounded(stream_, start.value.slice(here.begin - segment.offset, here.count()),
                   buckets_[segment.bucket].masters.slice(here.begin - state.begin, here.count()));
    }
  }
  publish();
}

std::vector<ParamStore::Piece> ParamStore::pieces_in(size_t shard, Range range) const {
  const Range place = shard_places_[shard].range;
  std::vector<Piece> result;
  for (const SegmentPiece& piece : layout_.pieces(intersection(place, range))) {
    result.push_back({.parameter = parameters_[layout_.segments()[piece.segment].parameter],
                      .offset = piece.segment_offset,
                      .shard_offset = piece.offset - place.begin,
                      .count = piece.count});
  }
  return result;
}

std::vector<ParamStore::Piece> ParamStore::pieces(size_t shard) const {
  require(shard < shards_.size(), "ParamStore::pieces: no such shard");
  return pieces_in(shard, shard_places_[shard].range);
}

std::vector<ParamStore::Piece> ParamStore::owned_pieces(size_t shard) const {
  require(shard < shards_.size(), "ParamStore::owned_pieces: no such shard");
  return pieces_in(shard, owned_range(shard_places_[shard].bucket));
}

void ParamStore::add_weights(int64_t bucket, Range range, std::vector<Weights>& all) const {
  const Range state = state_range(bucket);
  for (const SegmentPiece& piece : layout_.pieces(intersection(range, state))) {
    all.push_back(
        {.parameter = parameters_[layout_.segments()[piece.segment].parameter],
         .offset = piece.segment_offset,
         .data = buckets_[bucket].masters.slice(piece.offset - state.begin, piece.count)});
  }
}

std::vector<ParamStore::Weights> ParamStore::weights() const {
  std::vector<Weights> all;
  for (int64_t i = 0; i < static_cast<int64_t>(buckets_.size()); ++i) {
    add_weights(i, state_range(i), all);
  }
  return all;
}

std::vector<ParamStore::Weights> ParamStore::owned_weights() const {
  std::vector<Weights> all;
  for (int64_t i = 0; i < static_cast<int64_t>(buckets_.size()); ++i) {
    add_weights(i, owned_range(i), all);
  }
  return all;
}

int64_t ParamStore::parameter_elements() const {
  int64_t count = 0;
  for (const Segment& segment : layout_.segments()) {
    count += segment.count;
  }
  return count;
}

}  // namespace tandem

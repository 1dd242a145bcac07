#include "comm/param_store.h"

#include <algorithm>

#include "comm/agreement.h"
#include "src/core/convert.h"
#include "src/core/copy.h"
#include "src/core/elementwise.h"

namespace tandem {

namespace {

// Checked before the layout is computed from it.
const ParamStore::Options& checked(const ParamStore::Options& options) {
  const int stages = static_cast<int>(kZero.size());
  if (options.zero < 0 || options.zero >= stages) {
    fail(ExitCode::kConfig,
         str("dist.zero=", options.zero, ": no such stage, use 0 to ", stages - 1));
  }
  if (options.zero > 0) {
    fail(ExitCode::kConfig,
         str("dist.zero=", options.zero, " (sharded optimizer state): not in this build, use 0"));
  }
  return options;
}

std::vector<Parameter*> in_forward_order(const std::vector<BlockParameters>& blocks) {
  std::vector<Parameter*> result;
  for (const BlockParameters& block : blocks) {
    result.insert(result.end(), block.parameters.begin(), block.parameters.end());
  }
  return result;
}

}  // namespace

ParamStore::ParamStore(std::vector<BlockParameters> blocks, Communicator& communicator,
                       Memory& memory, const Options& options)
    : communicator_(communicator),
      options_(checked(options)),
      blocks_(std::move(blocks)),
      parameters_(in_forward_order(blocks_)),
      layout_(blocks_, {.ranks = communicator.size(),
                        .bucket_bytes = options.bucket_bytes,
                        .split_blocks = kZero[options.zero].parameters == Placement::kReplicated}) {
  check_equal(communicator, "the layout of the parameters", layout_.text());
  const bool rounds = options.dtype != DType::kF32;
  masters_ = Tensor::zeros(memory, {layout_.elements()}, DType::kF32,
                           rounds ? MemoryClass::kOptimizer : MemoryClass::kParameters);
  values_ =
      rounds ? Tensor::zeros(memory, {layout_.elements()}, options.dtype, MemoryClass::kParameters)
             : masters_;
  gradients_ = Tensor::zeros(memory, {layout_.elements()}, DType::kF32, MemoryClass::kGradients);
  for (const Segment& segment : layout_.segments()) {
    Parameter& parameter = *parameters_[segment.parameter];
    parameter.id = segment.parameter;
    parameter.value = values_.slice(segment.offset, segment.count).reshape(parameter.shape);
    parameter.grad = gradients_.slice(segment.offset, segment.count).reshape(parameter.shape);
    parameter.grad_written = false;
  }
  for (const Bucket& bucket : layout_.buckets()) {
    add_shard({bucket.range.begin, bucket.first_plain}, true);
    add_shard({bucket.first_plain, bucket.range.end}, false);
  }
  if (communicator.size() > 1) {
    make_reducer(memory);
  }
}

void ParamStore::make_reducer(Memory& memory) {
  const Resting& resting = kZero[options_.zero];
  const bool rounds = options_.wire_dtype != DType::kF32;
  const Tensor wire =
      rounds ? Tensor::zeros(memory, gradients_.shape(), options_.wire_dtype, MemoryClass::kStaging)
             : gradients_;
  std::vector<FlatBuffer> partial, reduced;
  std::vector<Tensor> gradients;
  for (const Bucket& bucket : layout_.buckets()) {
    const Tensor data = wire.slice(bucket.range.begin, bucket.range.count());
    partial.push_back({resting.gradients, data});
    reduced.push_back({resting.state, data});
    if (rounds) {
      gradients.push_back(gradients_.slice(bucket.range.begin, bucket.range.count()));
    }
  }
  reducer_.emplace(communicator_, std::move(partial), std::move(reduced), options_.overlap,
                   std::move(gradients));
}

void ParamStore::add_shard(Range range, bool decay) {
  if (range.count() == 0) {
    return;
  }
  shards_.push_back({.value = masters_.slice(range.begin, range.count()),
                     .grad = gradients_.slice(range.begin, range.count()),
                     .decay = decay});
  if (options_.dtype != DType::kF32) {
    shards_.back().working = values_.slice(range.begin, range.count());
  }
  shard_ranges_.push_back(range);
}

void ParamStore::initialize(Stream& stream, uint64_t seed) {
  Memory host(Device::kCpu);
  for (const Segment& segment : layout_.segments()) {
    Parameter start = *parameters_[segment.parameter];
    start.value = Tensor::empty(host, {segment.count}, DType::kF32, MemoryClass::kData);
    tandem::initialize(start, seed);
    copy(stream, start.value, masters_.slice(segment.offset, segment.count));
  }
  publish(stream);
}

void ParamStore::publish(const Stream& stream) {
  if (options_.dtype != DType::kF32) {
    convert(stream, masters_, values_);
  }
}

void ParamStore::begin_step() {
  for (Parameter* parameter : parameters_) {
    parameter->grad_written = false;
  }
}

void ParamStore::begin_backward(bool last_micro_step) {
  last_micro_step_ = last_micro_step;
  if (!last_micro_step || !reducer_) {
    return;
  }
  missing_.clear();
  for (const Bucket& bucket : layout_.buckets()) {
    missing_.push_back(bucket.parameters);
  }
  reducer_->begin();
}

void ParamStore::on_final(Context& context, Parameter& parameter) {
  if (!last_micro_step_ || !reducer_) {
    return;
  }
  settle_unused(context.stream, parameter);
  const int64_t bucket = layout_.segment_of(parameter.id).bucket;
  if (--missing_[bucket] == 0) {
    reducer_->ready(context.stream, bucket);
  }
}

Exposure ParamStore::finish_backward(Context& context) {
  if (!last_micro_step_) {
    return {};
  }
  last_micro_step_ = false;
  for (Parameter* parameter : parameters_) {
    settle_unused(context.stream, *parameter);
  }
  return reducer_ ? reducer_->finish(context.stream) : Exposure{};
}

// Old gradients must not pass for new ones.
void ParamStore::settle_unused(const Stream& stream, Parameter& parameter) const {
  if (parameter.grad_written) {
    return;
  }
  if (options_.unused_is_error) {
    fail(
        ExitCode::kConfig,
        str("parameter ", parameter.name, " got no gradient on rank ", communicator_.rank(),
            ": the loss does not depend on it; take it out of the model, or set dist.unused=zero"));
  }
  on_device(stream, [&](auto device) {
    kernels::fill(device, parameter.grad.elements(), parameter.grad.data<float>(), 0.0f);
  });
  parameter.grad_written = true;
}

std::vector<ParamStore::Piece> ParamStore::pieces_in(size_t shard, Range range) const {
  const int64_t begin = shard_ranges_[shard].begin;
  std::vector<Piece> result;
  for (const SegmentPiece& piece : layout_.pieces(intersection(shard_ranges_[shard], range))) {
    result.push_back({.parameter = parameters_[layout_.segments()[piece.segment].parameter],
                      .offset = piece.segment_offset,
                      .shard_offset = piece.offset - begin,
                      .count = piece.count});
  }
  return result;
}

std::vector<ParamStore::Piece> ParamStore::pieces(size_t shard) const {
  require(shard < shards_.size(), "ParamStore::pieces: no such shard");
  return pieces_in(shard, shard_ranges_[shard]);
}

std::vector<ParamStore::Piece> ParamStore::owned_pieces(size_t shard) const {
  require(shard < shards_.size(), "ParamStore::owned_pieces: no such shard");
  const int64_t begin = shard_ranges_[shard].begin;
  const auto bucket = std::ranges::find_if(layout_.buckets(), [&](const Bucket& candidate) {
    return candidate.range.begin <= begin && begin < candidate.range.end;
  });
  return pieces_in(shard, layout_.part(*bucket, communicator_.rank()));
}

int64_t ParamStore::parameter_elements() const {
  int64_t count = 0;
  for (const Segment& segment : layout_.segments()) {
    count += segment.count;
  }
  return count;
}

}  // namespace tandem

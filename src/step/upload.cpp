#include "src/step/upload.h"

#include <algorithm>

#include "layers/image_input/image_input.h"
#include "src/core/error.h"
#include "src/device/copy.h"
#include "src/device/profiler_range.h"

namespace tandem {

namespace {

// Throws for a value outside [0, limit) that is not `ignored`.
void require_range(const std::vector<int32_t>& values, int64_t limit, int32_t ignored,
                   const char* what) {
  const auto bad = std::ranges::find_if(
      values, [&](int32_t value) { return value != ignored && (value < 0 || value >= limit); });
  if (bad != values.end()) {
    fail_data(what, " ", *bad, " is outside [0, ", limit, "); make the dataset again");
  }
}

template <class T>
void fill(const Tensor& to, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  require(std::ssize(bytes) == to.bytes(), "Uploader: a micro-batch of another size");
  std::ranges::copy(bytes, to.raw());
}

}  // namespace

Uploader::Uploader(Stream& stream, Memory& memory, Memory& staging, const DatasetInfo& info,
                   DType dtype)
    : stream_(stream),
      copying_(stream.is_dry() ? Stream::dry(stream.device(), stream.clock().speed())
                               : Stream::compute(stream.device())),
      memory_(memory),
      staging_(staging),
      info_(info),
      dtype_(dtype),
      copies_(copying_) {
  if (is_text()) {
    return;
  }
  values_ = Tensor::empty(memory, {info.channels, 256}, DType::kF32, MemoryClass::kData);
  if (!stream.is_dry()) {
    Memory host(Device::kCpu);
    const std::vector<float> values = values_of_levels(info.mean, info.std);
    copy(stream,
         Tensor::of(std::as_bytes(std::span(values)), host, values_.shape(), DType::kF32,
                    MemoryClass::kData),
         values_);
  }
}

void Uploader::require_ranges(const MicroBatch& batch) const {
  require_range(batch.tokens, info_.vocab_size, 0, "token");
  require_range(batch.targets, is_text() ? info_.vocab_size : std::ssize(info_.classes),
                kIgnoreTarget, "target");
}

Uploader::Parcel Uploader::parcel(Memory& memory, MemoryClass memory_class,
                                  const MicroBatch& batch) const {
  const int64_t samples = batch.samples, targets = std::ssize(batch.targets);
  const DType dtype = is_text() ? DType::kI32 : DType::kU8;
  const Shape input = is_text() ? Shape{samples, targets / std::max<int64_t>(samples, 1)}
                                : Shape{samples, info_.channels, info_.height, info_.width};
  const Shape positions = batch.positions.empty() ? Shape{0} : input;
  const Shape placements{is_text() ? 0 : samples, 3};
  // Pixels come last, because they may end at any byte.
  const int64_t second = targets * size_of(DType::kI32);
  const int64_t third = second + positions.elements() * size_of(DType::kI32);
  const int64_t fourth = third + placements.elements() * size_of(DType::kI32);
  const Tensor bytes =
      Tensor::empty(memory, {fourth + input.elements() * size_of(dtype)}, DType::kU8, memory_class);
  return {bytes, bytes.view(0, {targets}, DType::kI32), bytes.view(second, positions, DType::kI32),
          bytes.view(third, placements, DType::kI32), bytes.view(fourth, input, dtype)};
}

// Packs a micro-batch into host memory.
Uploader::Parcel Uploader::packed(const MicroBatch& batch) {
  const Parcel result = parcel(staging_, MemoryClass::kStaging, batch);
  if (!stream_.is_dry()) {
    if (stream_.device() != Device::kCpu) {
      require_ranges(batch);
    }
    is_text() ? fill(result.input, batch.tokens) : fill(result.input, batch.pixels);
    fill(result.positions, batch.positions);
    fill(result.placements, batch.placements);
    fill(result.targets, batch.targets);
  }
  return result;
}

// Returns where micro-batch i lands in the memory of the device.
const Uploader::Parcel& Uploader::landing(int64_t i, const MicroBatch& batch,
                                          const Parcel& packed) {
  Parcel& place = landings_[{i, batch.samples}];
  if (!place.bytes || place.bytes.shape() != packed.bytes.shape()) {
    place = parcel(memory_, MemoryClass::kData, batch);
    copying_.wait(stream_.record());  // before, the compute stream may have used the memory
  }
  return place;
}

void Uploader::send(std::span<const MicroBatch> batches) {
  const ProfilerRange range("upload");
  sent_.clear();
  copying_.wait(fetched_);
  for (const MicroBatch& batch : batches) {
    const Parcel here = packed(batch);
    const bool stays = stream_.device() == Device::kCpu;
    sent_.push_back(stays ? here : landing(std::ssize(sent_), batch, here));
    copies_.copy(here.bytes, sent_.back().bytes);
  }
  stream_.wait(copies_.finish());
}

DeviceBatch Uploader::fetch(int64_t i, int64_t slot) {
  const Parcel& from = sent_.at(static_cast<size_t>(i));
  const Shape& sent = from.input.shape();
  const Shape shape = is_text() ? sent : Shape{sent[0], sent[2], sent[3], sent[1]};
  DeviceBatch& to = slots_[{slot, sent[0]}];
  if (!to.input || to.input.shape() != shape) {
    const auto place = [&](const Shape& of, DType dtype) {
      return Tensor::empty(memory_, of, dtype, MemoryClass::kData);
    };
    to.input = place(shape, is_text() ? DType::kI32 : dtype_);
    to.targets = place(from.targets.shape(), DType::kI32);
    to.positions = from.positions.elements() > 0 ? place(shape, DType::kI32) : Tensor();
  }
  if (is_text()) {
    copy(stream_, from.input, to.input);
  } else {
    image_input(stream_, from.input, from.placements, values_, to.input);
  }
  copy(stream_, from.targets, to.targets);
  if (to.positions) {
    copy(stream_, from.positions, to.positions);
  }
  fetched_ = stream_.record();
  return to;
}

}  // namespace tandem

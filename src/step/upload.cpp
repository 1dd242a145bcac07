#include "src/step/upload.h"

#include <algorithm>

#include "layers/image_input/image_input.h"
#include "src/core/error.h"
#include "src/core/mapped.h"
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
void copy_to(const Tensor& to, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  require(std::ssize(bytes) == to.bytes(), "Uploader: a micro-batch of another size");
  if (to) {
    std::ranges::copy(bytes, to.raw());
  }
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

// Lays out a micro-batch from byte `at` of a block on, and moves `at` behind it. Without a block it
// only counts.
Uploader::Parcel Uploader::parcel(const Tensor& block, int64_t& at, const BatchSizes& batch) const {
  const auto part = [&](const Shape& shape, DType dtype) {
    constexpr int64_t kAlignment = 64;
    const int64_t begin = at;
    at += (shape.elements() * size_of(dtype) + kAlignment - 1) / kAlignment * kAlignment;
    return block ? block.view(begin, shape, dtype) : Tensor();
  };
  Parcel parts;
  if (is_text()) {
    const Shape shape{batch.samples, batch.targets / std::max<int64_t>(batch.samples, 1)};
    parts.input = part(shape, DType::kI32);
    parts.positions = batch.has_positions ? part(shape, DType::kI32) : Tensor();
  } else {
    parts.input = part({batch.samples, info_.channels, info_.height, info_.width}, DType::kU8);
    parts.placements = part({batch.samples, 3}, DType::kI32);
  }
  parts.targets = part({batch.targets}, DType::kI32);
  return parts;
}

std::vector<Uploader::Parcel> Uploader::parcels(const Tensor& block,
                                                std::span<const BatchSizes> batches) const {
  std::vector<Parcel> all;
  int64_t at = 0;
  for (const BatchSizes& batch : batches) {
    all.push_back(parcel(block, at, batch));
  }
  return all;
}

void Uploader::fill(const Parcel& parts, const MicroBatch& batch) const {
  if (stream_.device() != Device::kCpu) {
    require_ranges(batch);
  }
  is_text() ? copy_to(parts.input, batch.tokens) : copy_to(parts.input, batch.pixels);
  copy_to(parts.positions, batch.positions);
  copy_to(parts.placements, batch.placements);
  copy_to(parts.targets, batch.targets);
}

// Frees the micro-batches sent before, and returns host memory for these.
Tensor Uploader::new_block(std::span<const BatchSizes> batches) {
  sent_.clear();
  int64_t bytes = 0;
  for (const BatchSizes& batch : batches) {
    static_cast<void>(parcel(Tensor(), bytes, batch));
  }
  return Tensor::empty(staging_, {bytes}, DType::kU8, MemoryClass::kStaging);
}

Tensor Uploader::send(std::span<const MicroBatch> batches) {
  require(!stream_.is_dry(), "Uploader: a dry run takes sizes");
  const ProfilerRange range("upload");
  const std::vector<BatchSizes> sizes = mapped(batches, [](const MicroBatch& batch) {
    return BatchSizes{batch.samples, std::ssize(batch.targets), !batch.positions.empty()};
  });
  const Tensor block = new_block(sizes);
  const std::vector<Parcel> all = parcels(block, sizes);
  for (size_t i = 0; i < all.size(); ++i) {
    fill(all[i], batches[i]);
  }
  return send(block, sizes);
}

Tensor Uploader::send(std::span<const BatchSizes> batches) {
  return send(new_block(batches), batches);
}

Tensor Uploader::send(Tensor sent, std::span<const BatchSizes> batches) {
  if (stream_.device() != Device::kCpu) {
    const auto place = [&] {
      return Tensor::empty(memory_, sent.shape(), DType::kU8, MemoryClass::kData);
    };
    auto& [landing, block] = places_[sent.bytes()];
    if (!landing) {
      landing = place();
      block = place();
      copying_.wait(stream_.record());  // before, the compute stream may have used the memory
    }
    copying_.wait(landing_is_free_);
    copies_.copy(sent, landing);
    stream_.wait(copies_.finish());
    copy(stream_, landing, block);
    landing_is_free_ = stream_.record();
    sent = block;
  }
  sent_ = parcels(sent, batches);
  return sent;
}

DeviceBatch Uploader::fetch(int64_t i) {
  const Parcel& from = sent_.at(static_cast<size_t>(i));
  if (is_text()) {
    return {from.input, from.targets, from.positions};
  }
  const Shape& sent = from.input.shape();
  Tensor& images = images_[sent[0]];
  if (!images) {
    images =
        Tensor::empty(memory_, {sent[0], sent[2], sent[3], sent[1]}, dtype_, MemoryClass::kData);
  }
  image_input(stream_, from.input, from.placements, values_, images);
  return {images, from.targets};
}

}  // namespace tandem

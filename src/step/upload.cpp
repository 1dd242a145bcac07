#include "src/step/upload.h"

#include <algorithm>

#include "layers/image_input/image_input.h"
#include "src/core/error.h"
#include "src/device/profiler_range.h"

namespace tandem {

namespace {

// Throws for a value outside [0, limit) that is not `ignored`.
void require_range(const std::vector<int32_t>& values, int64_t limit, int32_t ignored,
                   const char* what) {
  const auto bad = std::ranges::find_if(
      values, [&](int32_t value) { return value != ignored && (value < 0 || value >= limit); });
  if (bad != values.end()) {
    fail(ExitCode::kData,
         str(what, " ", *bad, " is outside [0, ", limit, "); make the dataset again"));
  }
}

}  // namespace

Uploader::Uploader(Stream& stream, Memory& memory, Memory& staging, const DatasetInfo& info,
                   DType dtype)
    : stream_(stream),
      memory_(memory),
      staging_(staging),
      info_(info),
      dtype_(dtype),
      copies_(stream) {
  if (info.kind == DatasetKind::kImages) {
    values_ =
        upload(values_of_levels(info.mean, info.std), {info.channels, 256}, DType::kF32, values_);
    static_cast<void>(copies_.finish());
  }
}

// If `values` is empty, the elements are undefined.
template <class T>
Tensor Uploader::upload(const std::vector<T>& values, const Shape& shape, DType dtype,
                        Tensor& place) {
  Tensor staged = values.empty() ? Tensor::empty(staging_, shape, dtype, MemoryClass::kStaging)
                                 : Tensor::of(std::as_bytes(std::span(values)), staging_, shape,
                                              dtype, MemoryClass::kStaging);
  if (stream_.device() == Device::kCpu) {
    return staged;
  }
  if (!place || place.shape() != shape) {
    place = Tensor::empty(memory_, shape, dtype, MemoryClass::kData);
  }
  copies_.copy(staged, place);
  return place;
}

DeviceBatch Uploader::upload(const MicroBatch& batch, int64_t slot) {
  const ProfilerRange range("upload");
  if (stream_.device() != Device::kCpu) {
    const int64_t classes = batch.tokens.empty() ? std::ssize(info_.classes) : info_.vocab_size;
    require_range(batch.tokens, info_.vocab_size, 0, "token");
    require_range(batch.targets, classes, kIgnoreTarget, "target");
  }
  return bring(batch, std::ssize(batch.tokens) / std::max<int64_t>(batch.samples, 1), slot);
}

DeviceBatch Uploader::blank(int64_t samples, int64_t length, int64_t slot) {
  return bring({.samples = samples}, length, slot);
}

DeviceBatch Uploader::bring(const MicroBatch& batch, int64_t length, int64_t slot) {
  const bool text = info_.kind == DatasetKind::kText;
  Slot& to = slots_[{slot, batch.samples}];
  const int64_t samples = batch.samples;
  const Tensor targets =
      upload(batch.targets, {samples * (text ? length : 1)}, DType::kI32, to.targets);
  if (text) {
    const Tensor tokens = upload(batch.tokens, {samples, length}, DType::kI32, to.input);
    static_cast<void>(copies_.finish());
    return {tokens, targets};
  }
  const Tensor pixels = upload(batch.pixels, {samples, info_.channels, info_.height, info_.width},
                               DType::kU8, to.input);
  const Tensor placements = upload(batch.placements, {samples, 3}, DType::kI32, to.placements);
  static_cast<void>(copies_.finish());
  if (!to.images) {
    to.images = Tensor::empty(memory_, {samples, info_.height, info_.width, info_.channels}, dtype_,
                              MemoryClass::kData);
  }
  image_input(stream_, pixels, placements, values_, to.images);
  return {to.images, targets};
}

}  // namespace tandem

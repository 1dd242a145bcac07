#include "src/data/image_dataset.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/data/augment.h"
#include "src/data/sampler.h"

namespace tandem {

ImageDataset::ImageDataset(DatasetInfo info) : Dataset(std::move(info)), file_(info_.path) {
  require(info_.kind == DatasetKind::kImages, "ImageDataset: not an image dataset");
  train_ = open_split(Split::kTrain);
  val_ = open_split(Split::kVal);
}

ImageDataset::SplitImages ImageDataset::open_split(Split split) const {
  const std::string group = str("/", name_of(split));
  SplitImages opened{file_.dataset(group + "/images"), file_.read_all<int32_t>(group + "/labels")};
  if (std::ssize(opened.labels) != opened.images.shape[0]) {
    fail_data(info_.path, ": ", opened.images.name, " holds ", opened.images.shape[0],
              " images, but there are ", opened.labels.size(), " labels");
  }
  const auto classes = static_cast<int32_t>(info_.classes.size());
  const auto wrong = std::ranges::find_if(
      opened.labels, [&](int32_t label) { return label < 0 || label >= classes; });
  if (wrong != opened.labels.end()) {
    fail_data(info_.path, ": ", group, "/labels: label ", *wrong, " at ",
              wrong - opened.labels.begin(), " is none of the ", classes, " classes");
  }
  return opened;
}

int64_t ImageDataset::windows(Split split, int64_t) const { return of(split).images.shape[0]; }

int32_t ImageDataset::read(Split split, int64_t index, std::span<uint8_t> pixels) const {
  const SplitImages& from = of(split);
  const auto size = std::ssize(pixels);
  require(size == info_.channels * info_.height * info_.width && index >= 0 &&
              index < from.images.shape[0],
          "ImageDataset: wrong image");
  file_.read(from.images, index * size, pixels);
  return from.labels[static_cast<size_t>(index)];
}

MicroBatch ImageDataset::empty_batch(int64_t count) const {
  const int64_t size = info_.channels * info_.height * info_.width;
  return {.samples = count,
          .targets = std::vector<int32_t>(static_cast<size_t>(count)),
          .pixels = std::vector<uint8_t>(static_cast<size_t>(count * size)),
          .placements = std::vector<ImagePlacement>(static_cast<size_t>(count)),
          .target_count = count};
}

void ImageDataset::read_into(Split split, int64_t index, int64_t row, MicroBatch* batch) const {
  const auto at = static_cast<size_t>(row), size = batch->pixels.size() / batch->targets.size();
  batch->targets[at] = read(split, index, std::span(batch->pixels).subspan(at * size, size));
}

MicroBatch ImageDataset::training_batch(const TrainingOptions& options, int64_t position,
                                        int64_t count) const {
  MicroBatch batch = empty_batch(count);
  const int64_t per_epoch = windows(Split::kTrain, 0);
  for (int64_t i = 0; i < count; ++i) {
    const Sample sample = sample_at(options.seed, per_epoch, position + i);
    read_into(Split::kTrain, sample.index, i, &batch);
    if (options.augment) {
      batch.placements[static_cast<size_t>(i)] =
          random_crop_and_flip(options.seed, sample.epoch, position + i);
    }
  }
  return batch;
}

MicroBatch ImageDataset::validation_batch(int64_t, int64_t first, int64_t count) const {
  MicroBatch batch = empty_batch(std::clamp<int64_t>(windows(Split::kVal, 0) - first, 0, count));
  for (int64_t i = 0; i < batch.samples; ++i) {
    read_into(Split::kVal, first + i, i, &batch);
  }
  return batch;
}

}  // namespace tandem

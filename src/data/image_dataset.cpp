#include "src/data/image_dataset.h"

#include <algorithm>
#include <sstream>

#include "src/core/error.h"
#include "src/data/augment.h"
#include "src/data/sampler.h"

namespace tandem {

void write_classes(const DatasetInfo& info, H5Writer* file) {
  std::string names;
  for (const std::string& name : info.classes) {
    names += name + "\n";
  }
  file->write_all<uint8_t>("/class_names", std::vector<uint8_t>(names.begin(), names.end()));
  file->set_attribute("/", "mean", info.mean);
  file->set_attribute("/", "std", info.std);
}

void read_classes(const H5Reader& file, DatasetInfo* info) {
  const auto bytes = file.read_all<uint8_t>("/class_names");
  std::istringstream names(std::string(bytes.begin(), bytes.end()));
  for (std::string name; std::getline(names, name);) {
    info->classes.push_back(name);
  }
  info->mean = file.double_attribute("/", "mean");
  info->std = file.double_attribute("/", "std");
  const auto channels = static_cast<size_t>(info->channels);
  // Of pixels in [0, 1]. `tandem prepare` writes no smaller std, and 1 for a constant channel.
  const auto is_mean = [](double value) { return value >= 0 && value <= 1; };
  const auto is_std = [](double value) { return value >= 1e-6 && value <= 1; };
  if (info->mean.size() != channels || info->std.size() != channels ||
      !std::ranges::all_of(info->mean, is_mean) || !std::ranges::all_of(info->std, is_std)) {
    fail_data(file.path(), ": the attributes mean and std must have one number for each of the ",
              channels, " channels, mean in [0, 1] and std in [1e-6, 1]");
  }
}

void keep_classes(const DatasetInfo& info, const std::string& path) {
  H5Writer file(path);
  write_classes(info, &file);
  file.set_attribute("/", "size", std::vector<int64_t>{info.channels, info.height, info.width});
  file.commit();
}

DatasetInfo kept_classes(const std::string& path) {
  const H5Reader file(path);
  const std::vector<int64_t> size = file.int_attribute("/", "size");
  if (size.size() != 3 || std::ranges::any_of(size, [](int64_t side) { return side < 1; })) {
    fail_data(path, ": the attribute size must be channels, height and width of images");
  }
  DatasetInfo info{.path = path,
                   .kind = DatasetKind::kImages,
                   .channels = size[0],
                   .height = size[1],
                   .width = size[2]};
  read_classes(file, &info);
  return info;
}

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
  return from.labels[index];
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
      batch.placements[i] = random_crop_and_flip(options.seed, sample.epoch, position + i);
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

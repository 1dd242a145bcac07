// Labelled images, one tensor per split; and what a model needs to know of them.
#pragma once

#include <span>

#include "src/data/dataset.h"

namespace tandem {

// The class names, mean and std of images, in a file as src/data/dataset.h says. Reading needs
// info->channels, and is kData where they make no sense.
void write_classes(const DatasetInfo& info, H5Writer* file);
void read_classes(const H5Reader& file, DatasetInfo* info);

// RUN/classes.h5: these, and the images' size, so that a model needs no dataset to read images.
void keep_classes(const DatasetInfo& info, const std::string& path);
DatasetInfo kept_classes(const std::string& path);

class ImageDataset : public Dataset {
 public:
  // `info`: from inspect_dataset(), of kind images.
  explicit ImageDataset(DatasetInfo info);

  int64_t windows(Split split, int64_t context) const override;
  MicroBatch training_batch(const TrainingOptions& options, int64_t position,
                            int64_t count) const override;
  MicroBatch validation_batch(int64_t context, int64_t first, int64_t count) const override;

  // Reads the pixels [C, H, W] of one image and returns its class. Throws kData, naming place and
  // label, when the label is not a class.
  int32_t read(Split split, int64_t index, std::span<uint8_t> pixels) const;

 private:
  struct SplitImages {
    H5Dataset images;
    std::vector<int32_t> labels;
  };
  SplitImages open_split(Split split) const;
  const SplitImages& of(Split split) const { return split == Split::kTrain ? train_ : val_; }
  MicroBatch empty_batch(int64_t count) const;
  void read_into(Split split, int64_t index, int64_t row, MicroBatch* batch) const;

  H5Reader file_;
  SplitImages train_;
  SplitImages val_;
};

}  // namespace tandem

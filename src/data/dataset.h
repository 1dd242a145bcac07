// Datasets as training sees them: HDF5 files that `tandem prepare` wrote.
//
// Text:   /train/tokens, /val/tokens [tokens] u16 or u32, and the tokenizer under /tokenizer.
// Images: /train/images [N, C, H, W] u8, /train/labels [N] i32, and the same under /val; attributes
// of the
//         root: class_names (one per line), mean and std (per channel of the training images,
//         pixels scaled to [0, 1]).
// Both have the root attributes kind ("text" or "images") and content_hash (XXH3-128, 32 hex
// digits). Every error is kData and begins with the path. Reading is safe from several threads at
// once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/content_hash.h"
#include "src/data/tokenizer.h"
#include "src/io/hdf5.h"

namespace tandem {

enum class DatasetKind : uint8_t { kText, kImages };
enum class Split : uint8_t { kTrain, kVal };

std::string_view name_of(DatasetKind kind);  // "text", "images"
std::string_view name_of(Split split);       // "train", "val"

struct DatasetInfo {
  std::string path;
  DatasetKind kind = DatasetKind::kText;
  int64_t file_bytes = 0;
  std::string content_hash;
  int64_t train_count = 0;  // tokens or images
  int64_t val_count = 0;

  // Text.
  std::string tokenizer;  // char, bytes, gpt2
  int64_t vocab_size = 0;

  // Images.
  int64_t channels = 0, height = 0, width = 0;
  std::vector<std::string> classes;
  std::vector<double> mean, std;  // [channels]

  // Equal for equal files; cheap, for comparing what the ranks opened.
  std::string fingerprint() const;
};

// Describes a dataset from its header alone. Throws when the file is missing, cut short, not HDF5,
// or not a dataset.
DatasetInfo inspect_dataset(const std::string& path);

// Reads everything and computes the content hash again; equal to the stored one unless bytes
// changed.
std::string compute_content_hash(const std::string& path);

// Throws when a model of kind `model` ("gpt") cannot be trained on this dataset: "model gpt needs a
// text dataset; X holds images; ...".
void require_kind(const DatasetInfo& info, DatasetKind kind, std::string_view model);

class TokenDataset {
 public:
  explicit TokenDataset(const std::string& path);

  const DatasetInfo& info() const { return info_; }
  int64_t count(Split split) const;  // tokens

  // Reads the tokens from `start` on. Throws, naming place and id, on one outside the vocabulary.
  void read(Split split, int64_t start, std::span<int32_t> out) const;

 private:
  const H5Dataset& tokens(Split split) const { return split == Split::kTrain ? train_ : val_; }

  DatasetInfo info_;
  H5Reader file_;
  H5Dataset train_;
  H5Dataset val_;
};

class ImageDataset {
 public:
  explicit ImageDataset(const std::string& path);

  const DatasetInfo& info() const { return info_; }
  int64_t count(Split split) const;  // images

  // Reads the pixels [C, H, W] of one image and returns its label. Throws, naming place and label,
  // on one that is not a class.
  int32_t read(Split split, int64_t index, std::span<uint8_t> pixels) const;

 private:
  struct Part {
    H5Dataset images;
    std::vector<int32_t> labels;
  };
  Part open_part(Split split) const;
  const Part& part(Split split) const { return split == Split::kTrain ? train_ : val_; }

  DatasetInfo info_;
  H5Reader file_;
  Part train_;
  Part val_;
};

// What the content hash covers, in this order. Text: the tokenizer (this function), then the token
// bytes of train and val as stored. Images: class names, then images and labels of train and of
// val.
void add_to_hash(const Tokenizer& tokenizer, ContentHash* hash);
void add_to_hash(const std::vector<std::string>& classes, ContentHash* hash);

}  // namespace tandem

// Turns the files of an input into images, each with a split and a class.
//
// Responsible for recognising what a folder or archive holds: class folders with JPEG and PNG
// files, IDX files, or CIFAR-10 batches. One input holds only one of these kinds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/prepare/bad_records.h"
#include "src/prepare/file_source.h"
#include "src/prepare/images/image_store.h"

namespace tandem {

class ImageCollector {
 public:
  // A gzip-compressed IDX file above the limit is Error(kData).
  ImageCollector(ImageStore* store, BadRecords* bad, RecordLimit limit)
      : store_(*store), bad_(*bad), limit_(limit) {}

  void add(const SourceFile& file);

  // Call after the last file. Pairs IDX images with their labels, numbers the classes, and sorts
  // the images by name. Throws kData when IDX files do not match or an image is there twice.
  void finish();

  const std::vector<std::string>& classes() const { return classes_; }
  // Files that are neither images nor say something about images, and the names of the first few.
  int64_t ignored_files() const { return ignored_; }
  const std::vector<std::string>& some_ignored() const { return some_ignored_; }

 private:
  // Where the labels come from: names of folders, or numbers in files.
  enum class Labels { kUnknown, kFolders, kNumbers };
  struct IdxPair {
    std::string images, images_place, labels, labels_place;
  };

  void add_image_file(const SourceFile& file);
  void add_cifar_batch(const SourceFile& file, std::string_view base);
  void add_idx_file(const SourceFile& file, const std::string& base);
  void finish_idx(const std::string& prefix, const IdxPair& pair);
  void finish_classes();
  void use_labels(Labels labels, const std::string& place);
  void store(const Image& image, const std::string& name, const std::string& place, ImagePart part,
             int32_t label);

  ImageStore& store_;
  BadRecords& bad_;
  RecordLimit limit_;
  Labels labels_ = Labels::kUnknown;
  std::map<std::string, int32_t> folder_labels_;  // numbered in the order of first appearance
  std::map<std::string, IdxPair> idx_;            // key: what precedes "-images" in the name
  std::vector<std::string> classes_;
  std::string outside_split_;  // the first image that is in no split, and the first that is in one
  std::string inside_split_;
  int64_t ignored_ = 0;
  std::vector<std::string> some_ignored_;
};

}  // namespace tandem

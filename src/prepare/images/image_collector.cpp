#include "src/prepare/images/image_collector.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <set>
#include <sstream>
#include <utility>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/data/utf8.h"
#include "src/io/byte_stream.h"
#include "src/prepare/images/image_batch_files.h"

namespace tandem {
namespace {

constexpr int32_t kCifarClasses = 10;

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> choices) {
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

// The split that a folder, or a prefix of an IDX file's name, is named after.
std::optional<ImagePart> part_named(const std::string& name) {
  const std::string lower = lower_case(name);
  if (is_one_of(lower, {"train", "training"})) {
    return ImagePart::kTrain;
  }
  if (is_one_of(lower, {"val", "valid", "validation"})) {
    return ImagePart::kVal;
  }
  return is_one_of(lower, {"test", "testing", "t10k"}) ? std::optional(ImagePart::kTest)
                                                       : std::nullopt;
}

struct Place {
  ImagePart part = ImagePart::kNone;
  std::string class_name;
};

// Split and class from the folders of a path; empty class when there is none.
Place place_of(const std::filesystem::path& name) {
  const std::vector<std::string> folders(name.begin(), std::prev(name.end()));
  for (size_t i = 0; i < folders.size(); ++i) {
    if (const auto part = part_named(folders[i])) {
      return {*part, i + 1 < folders.size() ? folders[i + 1] : ""};
    }
  }
  return {ImagePart::kNone, folders.empty() ? "" : folders.back()};
}

// MNIST's files as they were published, unpacked or renamed: train-images-idx3-ubyte.gz,
// train-images.idx3-ubyte, t10k_labels.idx1.
bool is_idx_name(const std::string& base) {
  return base.find("ubyte") != std::string::npos || base.find("idx1") != std::string::npos ||
         base.find("idx3") != std::string::npos;
}

std::string numbered(std::string_view base, int64_t record) {
  return str(base, "[", std::setfill('0'), std::setw(8), record, "]");
}

}  // namespace

void ImageCollector::add(const SourceFile& file) {
  const std::filesystem::path path(file.name);
  const std::string base = path.filename().string();
  const std::string extension = lower_case(path.extension().string());
  if (is_one_of(extension, {".jpg", ".jpeg", ".png"})) {
    add_image_file(file);
  } else if (extension == ".bin" && (base.starts_with("data_batch_") || base == "test_batch.bin")) {
    add_cifar_batch(file, base);
  } else if (base == "batches.meta.txt") {
    if (!classes_.empty()) {
      fail_data(file.place, ": a second list of class names; keep one");
    }
    std::istringstream names(file.content());
    for (std::string name; std::getline(names, name);) {
      name.erase(name.find_last_not_of(" \t\r") + 1);
      if (!name.empty()) {
        classes_.push_back(name);
      }
    }
  } else if (is_idx_name(base)) {
    add_idx_file(file, base);
  } else if (is_one_of(extension, {".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm",
                                   ".heic", ".avif", ".jp2", ".svg"})) {
    bad_.add(file.place, "an image format that is not read; convert it to PNG or JPEG");
  } else {
    if (++ignored_ <= 3) {
      some_ignored_.push_back(visible(file.name));
    }
  }
}

void ImageCollector::use_labels(Labels labels, const std::string& place) {
  if (labels_ != Labels::kUnknown && labels_ != labels) {
    fail_data(place, ": class folders and batch files (IDX, CIFAR-10) in one input");
  }
  labels_ = labels;
}

void ImageCollector::store(const Image& image, const std::string& name, const std::string& place,
                           ImagePart part, int32_t label) {
  const std::string problem = store_.add(image, name, part, label);
  if (!problem.empty()) {
    bad_.add(place, problem);
  }
}

void ImageCollector::add_image_file(const SourceFile& file) {
  use_labels(Labels::kFolders, file.place);
  const Place place = place_of(file.name);
  (place.part == ImagePart::kNone ? outside_split_ : inside_split_) = file.place;
  if (!outside_split_.empty() && !inside_split_.empty()) {
    fail_data(inside_split_, " is in a folder train, val or test, and ", outside_split_,
              " is not: put all images into such folders, or none");
  }
  Image image;
  if (!file.problem.empty()) {
    bad_.add(file.place, file.problem);
  } else if (place.class_name.empty()) {
    bad_.add(file.place, "not in a class folder");
  } else if (const auto problem = decode_image(file.content(), &image); !problem.empty()) {
    bad_.add(file.place, problem);
  } else {
    const auto next = static_cast<int32_t>(folder_labels_.size());
    const int32_t label = folder_labels_.emplace(place.class_name, next).first->second;
    store(image, file.name, file.place, place.part, label);
  }
}

void ImageCollector::add_cifar_batch(const SourceFile& file, std::string_view base) {
  use_labels(Labels::kNumbers, file.place);
  const ImagePart part = base == "test_batch.bin" ? ImagePart::kTest : ImagePart::kTrain;
  parse_cifar_batch(file.content(), file.place,
                    [&](int64_t record, int32_t label, const Image& image) {
                      const std::string place = str(file.place, " record ", record);
                      if (label >= kCifarClasses) {
                        bad_.add(place, str("label ", label, " where 0 to 9 are allowed"));
                      } else {
                        store(image, numbered(file.name, record), place, part, label);
                      }
                    });
}

// Keeps an IDX file until finish(), because its partner may come later.
void ImageCollector::add_idx_file(const SourceFile& file, const std::string& base) {
  use_labels(Labels::kNumbers, file.place);
  const bool is_images = base.find("images") != std::string::npos;
  const size_t end = base.find(is_images ? "images" : "labels");
  if (end == std::string::npos || end == 0) {
    fail_data(file.place,
              ": IDX files are called NAME-images... and NAME-labels..., such as "
              "train-images-idx3-ubyte");
  }
  IdxPair& pair = idx_[base.substr(0, end - 1)];  // without the - or _ at its end
  std::string& bytes = is_images ? pair.images : pair.labels;
  std::string& place = is_images ? pair.images_place : pair.labels_place;
  if (!place.empty()) {
    fail_data(file.place, ": the same images as ", place, "; keep one");
  }
  bytes = gunzip(file.content(), file.place, limit_);
  place = file.place;
}

void ImageCollector::finish_idx(const std::string& prefix, const IdxPair& pair) {
  if (pair.images_place.empty()) {
    fail_data(pair.labels_place, ": the images that go with it are missing");
  }
  if (pair.labels_place.empty()) {
    fail_data(pair.images_place, ": the labels that go with it are missing");
  }
  const IdxImages images = parse_idx_images(pair.images, pair.images_place);
  const std::string_view labels = parse_idx_labels(pair.labels, pair.labels_place);
  if (std::ssize(labels) != images.count) {
    fail_data(pair.labels_place, ": ", labels.size(), " labels for the ", images.count,
              " images of ", pair.images_place);
  }
  const auto part = part_named(prefix.substr(prefix.find_last_of("-_.") + 1));
  const int64_t size = images.height * images.width;
  Image image{1, images.height, images.width, {}};
  for (int64_t i = 0; i < images.count; ++i) {
    const std::string_view pixels =
        images.pixels.substr(static_cast<size_t>(i * size), static_cast<size_t>(size));
    image.pixels.assign(pixels.begin(), pixels.end());
    store(image, numbered(prefix, i), str(pair.images_place, " record ", i),
          part.value_or(ImagePart::kNone), static_cast<uint8_t>(labels[static_cast<size_t>(i)]));
  }
}

void ImageCollector::finish_classes() {
  if (labels_ == Labels::kFolders) {
    // Renumbers the labels from the order of first appearance to the order of names.
    classes_.clear();
    std::vector<int32_t> renumbered(folder_labels_.size());
    for (const auto& [name, label] : folder_labels_) {
      renumbered[static_cast<size_t>(label)] = static_cast<int32_t>(classes_.size());
      classes_.push_back(name);
    }
    for (StoredImage& image : store_.images()) {
      image.label = renumbered[static_cast<size_t>(image.label)];
    }
    return;
  }
  int32_t count = 0;
  for (const StoredImage& image : store_.images()) {
    count = std::max(count, image.label + 1);
  }
  // Labels that have no name from batches.meta.txt get their number as name.
  for (auto label = static_cast<int32_t>(classes_.size()); label < count; ++label) {
    classes_.push_back(str(label));
  }
}

void ImageCollector::finish() {
  for (const auto& [prefix, pair] : std::exchange(idx_, {})) {
    finish_idx(prefix, pair);
  }
  finish_classes();
  std::vector<StoredImage>& images = store_.images();
  std::ranges::sort(images, {}, &StoredImage::name);
  const auto twice = std::ranges::adjacent_find(images, {}, &StoredImage::name);
  if (twice != images.end()) {
    fail_data(twice->name, ": twice in the input");
  }
}

}  // namespace tandem

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/data/image_dataset.h"
#include "src/io/content_hash.h"
#include "src/io/file.h"
#include "src/io/hdf5/hdf5.h"
#include "src/prepare/bad_records.h"
#include "src/prepare/file_source.h"
#include "src/prepare/images/image_collector.h"
#include "src/prepare/images/image_store.h"
#include "src/prepare/prepare.h"

namespace tandem {
namespace {

using Images = std::vector<const StoredImage*>;

struct Parts {
  Images train;
  Images val;
  int64_t left_out = 0;  // images of test/, when there is val/ too
};

// Moves the given fraction of each class to validation: the images whose names have the smallest
// hashes. A hash of a name does not depend on what else is in the input.
void split_by_name(double val_fraction, Parts* parts) {
  std::map<int32_t, std::vector<std::pair<Hash128, const StoredImage*>>> by_class;
  for (const StoredImage* image : parts->train) {
    by_class[image->label].emplace_back(hash_of(image->name), image);
  }
  std::unordered_set<const StoredImage*> chosen;
  for (auto& [label, images] : by_class) {
    std::sort(images.begin(), images.end());
    const auto count =
        static_cast<int64_t>(std::llround(val_fraction * static_cast<double>(images.size())));
    for (int64_t i = 0; i < count; ++i) {
      chosen.insert(images[static_cast<size_t>(i)].second);
    }
  }
  const auto is_chosen = [&](const StoredImage* image) { return chosen.contains(image); };
  std::ranges::copy_if(parts->train, std::back_inserter(parts->val), is_chosen);
  std::erase_if(parts->train, is_chosen);
}

constexpr const char* kLookedFor =
    "; looked for class folders of .jpg and .png files, IDX files such as train-images-idx3-ubyte "
    "and train-labels-idx1-ubyte, and CIFAR-10's data_batch_1.bin";

Parts divide(const PrepareImagesOptions& options, const std::vector<StoredImage>& images,
             const ImageCollector& collector) {
  const bool has_val = std::ranges::count(images, ImagePart::kVal, &StoredImage::part) > 0;
  Parts parts;
  for (const StoredImage& image : images) {
    if (image.part == ImagePart::kTest && has_val) {
      ++parts.left_out;
    } else if (image.part == ImagePart::kTest || image.part == ImagePart::kVal) {
      parts.val.push_back(&image);
    } else {
      parts.train.push_back(&image);
    }
  }
  if (parts.val.empty()) {
    split_by_name(options.val_fraction, &parts);
  }
  if (images.empty()) {
    const int64_t others = collector.ignored_files();
    const std::vector<std::string>& names = collector.some_ignored();
    fail_data(options.input, ": no images found among ", counted(others, "file"),
              names.empty() ? "" : ": ", joined(names), others > std::ssize(names) ? ", ..." : "",
              kLookedFor);
  }
  if (parts.train.empty()) {
    fail_data(options.input, ": there are no training images; all ", images.size(),
              " are for validation or test, such as ", visible(images[0].name), kLookedFor);
  }
  return parts;
}

// Counts the validation images with the pixels of a training image, and prints the first few.
int64_t count_leaks(const Parts& parts) {
  constexpr int64_t kShown = 5;
  std::unordered_map<Hash128, const StoredImage*, Hash128Hasher> train;
  for (const StoredImage* image : parts.train) {
    train.emplace(image->hash, image);
  }
  int64_t leaked = 0;
  for (const StoredImage* image : parts.val) {
    const auto found = train.find(image->hash);
    if (found != train.end() && ++leaked <= kShown) {
      std::fprintf(stderr, "leakage: %s has the pixels of %s\n", image->name.c_str(),
                   found->second->name.c_str());
    }
  }
  return leaked;
}

// Sums over the pixels of each channel, exact in integers.
class Moments {
 public:
  explicit Moments(int64_t channels)
      : sums_(static_cast<size_t>(channels)), squares_(static_cast<size_t>(channels)) {}

  void add(std::span<const uint8_t> pixels) {
    const size_t area = pixels.size() / sums_.size();
    for (size_t channel = 0; channel < sums_.size(); ++channel) {
      uint64_t sum = 0;
      uint64_t square = 0;
      for (const uint64_t pixel : pixels.subspan(channel * area, area)) {
        sum += pixel;
        square += pixel * pixel;
      }
      sums_[channel] += sum;
      squares_[channel] += square;
    }
    count_ += static_cast<int64_t>(area);
  }

  // Of pixels scaled to [0, 1].
  std::vector<double> mean() const {
    return mapped(sums_, [&](uint64_t sum) {
      return static_cast<double>(sum) / static_cast<double>(count_) / 255.0;
    });
  }

  // The standard deviation of the population. 1 for a constant channel, so that normalisation turns
  // it into zeros.
  std::vector<double> std() const {
    const std::vector<double> means = mean();
    std::vector<double> deviations;
    for (size_t channel = 0; channel < means.size(); ++channel) {
      const double square =
          static_cast<double>(squares_[channel]) / static_cast<double>(count_) / (255.0 * 255.0);
      const double variance = square - means[channel] * means[channel];
      deviations.push_back(variance > 1e-12 ? std::sqrt(variance) : 1.0);
    }
    return deviations;
  }

 private:
  std::vector<uint64_t> sums_;
  std::vector<uint64_t> squares_;
  int64_t count_ = 0;
};

void write_part(const std::string& group, const Images& images, const ImageStore& store,
                H5Writer* file, ContentHash* hash, Moments* moments) {
  constexpr int64_t kImagesAtOnce = 256;
  const auto count = std::ssize(images);
  const int64_t size = store.image_bytes();
  file->create_dataset(group + "/images", H5Type::kU8,
                       {count, store.channels(), store.height(), store.width()});
  std::vector<uint8_t> pixels;
  for (int64_t first = 0; first < count; first += kImagesAtOnce) {
    const int64_t end = std::min(count, first + kImagesAtOnce);
    pixels.resize(static_cast<size_t>((end - first) * size));
    for (int64_t i = first; i < end; ++i) {
      const auto one = std::span(pixels).subspan(static_cast<size_t>((i - first) * size),
                                                 static_cast<size_t>(size));
      store.read(*images[static_cast<size_t>(i)], one);
      if (moments != nullptr) {
        moments->add(one);
      }
    }
    file->write<uint8_t>(group + "/images", first * size, pixels);
    hash->add(pixels.data(), std::ssize(pixels));
  }
  const std::vector<int32_t> labels = mapped(images, &StoredImage::label);
  file->write_all<int32_t>(group + "/labels", labels);
  hash->add(labels.data(), static_cast<int64_t>(labels.size() * sizeof(int32_t)));
}

std::string write_dataset(const Parts& parts, const std::vector<std::string>& classes,
                          const ImageStore& store, H5Writer* file) {
  ContentHash hash;
  add_to_hash(classes, &hash);
  Moments moments(store.channels());
  write_part("/train", parts.train, store, file, &hash, &moments);
  write_part("/val", parts.val, store, file, &hash, nullptr);
  const DatasetInfo info{.kind = DatasetKind::kImages,
                         .train_count = std::ssize(parts.train),
                         .val_count = std::ssize(parts.val),
                         .channels = store.channels(),
                         .height = store.height(),
                         .width = store.width(),
                         .classes = classes,
                         .mean = moments.mean(),
                         .std = moments.std()};
  add_to_hash(info, &hash);
  const std::string content_hash = hash.digest().hex();
  file->set_attribute("/", "kind", std::string("images"));
  file->set_attribute("/", "format", std::vector<int64_t>{kDatasetFormat});
  write_classes(info, file);
  file->set_attribute("/", "content_hash", content_hash);
  return content_hash;
}

void print_report(const PrepareImagesOptions& options, const PrepareReport& report,
                  const ImageStore& store, int64_t left_out) {
  std::string text =
      str(options.output, ": ", counted(report.train_count, "training image"), " and ",
          counted(report.val_count, "validation image"), ", ", store.width(), " x ", store.height(),
          " pixels, ", store.channels() == 1 ? "grey" : "RGB", ", ",
          counted(report.class_count, "class", "classes"), "\n");
  const auto add_if = [&](int64_t count, const std::string& line) {
    text += count > 0 ? "  " + line + "\n" : "";
  };
  add_if(report.bad, "left out: " + counted(report.bad, "bad image"));
  add_if(left_out, "left out: " + counted(left_out, "image") + " of test/, because there is val/");
  add_if(report.unused_classes,
         counted(report.unused_classes, "class", "classes") + " without a training image");
  add_if(report.ignored_files, "ignored: " + counted(report.ignored_files, "other file"));
  add_if(report.leaked, str("leakage: ", counted(report.leaked, "validation image"),
                            " also in the training part"));
  add_if(report.val_count == 0,
         "there is no validation part: `tandem eval` will refuse this dataset");
  show("%s", text.c_str());
}

}  // namespace

PrepareReport prepare_images(const PrepareImagesOptions& options) {
  if (!std::filesystem::exists(options.input)) {
    fail_data(options.input, ": no such file or folder");
  }
  make_directories(parent_of(options.output));
  // Created first, so that an output that cannot be written fails before the work begins.
  H5Writer file(options.output);
  ImageStore store(parent_of(options.output), options.height, options.width);
  BadRecords bad(options.max_bad);
  ImageCollector collector(&store, &bad, options.limit);
  for_each_file(options.input, options.limit,
                [&](const SourceFile& source) { collector.add(source); });
  collector.finish();
  bad.finish();
  const Parts parts = divide(options, store.images(), collector);
  PrepareReport report;
  report.train_count = std::ssize(parts.train);
  report.val_count = std::ssize(parts.val);
  report.class_count = static_cast<int64_t>(collector.classes().size());
  const auto labels = mapped(parts.train, &StoredImage::label);
  const std::set<int32_t> used(labels.begin(), labels.end());
  report.unused_classes = report.class_count - std::ssize(used);
  report.bad = bad.count();
  report.ignored_files = collector.ignored_files();
  report.leaked = count_leaks(parts);
  report.content_hash = write_dataset(parts, collector.classes(), store, &file);
  file.commit();
  print_report(options, report, store, parts.left_out);
  return report;
}

}  // namespace tandem

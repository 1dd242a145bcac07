// Datasets as training sees them: HDF5 files that `tandem prepare` wrote.
//
// Text:   /train/tokens, /val/tokens [tokens] u16 or u32, and the tokenizer under /tokenizer;
//         /train/starts, /val/starts [documents + 1] u64: the first token of each document, and
//         the number of tokens. They rise strictly, from 0. Either both or neither of /train/loss,
//         /val/loss [tokens] u8: 1 for tokens that are predicted, 0 for those that are only read.
// Images: /train/images [N, C, H, W] u8, /train/labels [N] i32, and the same under /val;
//         /class_names u8, one a line; and as attributes of the root mean and std (per channel of
//         the training images, pixels scaled to [0, 1]).
// Both have the root attributes kind ("text" or "images"), format (4; 3, whose texts have no
// starts, is read, too) and content_hash (XXH3-128, 32 hex digits). Every error is kData and begins
// with the path. Reading is safe from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/data/batch.h"
#include "src/data/tokenizer.h"
#include "src/io/content_hash.h"
#include "src/io/hdf5/hdf5.h"

namespace tandem {

enum class DatasetKind : uint8_t { kText, kImages };
enum class Split : uint8_t { kTrain, kVal };

std::string_view name_of(DatasetKind kind);  // "text", "images"
std::string_view name_of(Split split);       // "train", "val"

inline constexpr int64_t kDatasetFormat = 4;

struct DatasetInfo {
  std::string path{};
  DatasetKind kind = DatasetKind::kText;
  int64_t format = kDatasetFormat;
  int64_t file_bytes = 0;
  std::string content_hash{};
  int64_t train_count = 0;  // tokens or images
  int64_t val_count = 0;

  // Text.
  std::string tokenizer{};  // char, bytes, gpt2, bpe
  int64_t vocab_size = 0;
  bool is_masked = false;  // it says which tokens are predicted

  // Images.
  int64_t channels = 0, height = 0, width = 0;
  std::vector<std::string> classes{};
  std::vector<double> mean{}, std{};  // [channels]

  // Whether it says where documents begin: a text of format 4.
  bool has_documents() const { return kind == DatasetKind::kText && format == kDatasetFormat; }

  // Equal for equal files. Cheap, so that ranks can check that they opened the same file.
  std::string fingerprint() const;
};

// Describes a dataset from its header alone. Throws when the file is missing, cut short, not HDF5,
// or not a dataset, or when an attribute has a value that makes no sense.
DatasetInfo inspect_dataset(const std::string& path);

// Reads everything and computes the content hash again; equal to the stored one unless the file
// was damaged or changed.
std::string compute_content_hash(const std::string& path);

// Throws when the content does not have the stored hash, or when documents begin where they cannot.
// That takes under two seconds if the file has at most kQuicklyVerified bytes and comes from a disk
// of 256 MiB/s; larger files are verified only if `also_large`.
inline constexpr int64_t kQuicklyVerified = int64_t{512} << 20;
void verify_content(const DatasetInfo& info, bool also_large);

// A hash of what ids mean: the tokenizer of a text dataset, the class names of an image dataset. A
// model makes sense only of data with the hash that it was trained with.
std::string vocabulary_hash(const std::string& path);

// Throws when a model of kind `model` ("gpt") cannot be trained on this dataset: "model gpt needs a
// text dataset; X holds images; ...".
void require_kind(const DatasetInfo& info, DatasetKind kind, std::string_view model);

// How text becomes windows.
enum class WindowKind : uint8_t { kStream, kDocuments };
struct Windows {
  WindowKind kind = WindowKind::kStream;
  // Only documents need to know these when they are opened, because their windows are planned then.
  // They are what TrainingOptions will say; validation has the same context.
  int64_t context = 0;
  uint64_t seed = 0;
};

// How training samples are made.
struct TrainingOptions {
  uint64_t seed = 0;
  int64_t context = 0;   // text: tokens in a window
  bool augment = false;  // images: random crop and flip
};

// What it costs that windows hold whole documents, in an epoch.
struct PackingCosts {
  double padding = 0;         // the share of windows that no document fills
  int64_t documents_cut = 0;  // how often a document is cut
  std::string text() const;   // "1.2 % padding, 7 cuts in documents"
  bool operator==(const PackingCosts&) const = default;
};

// An open dataset. It makes micro-batches of either split. Safe to use from several threads at
// once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  const DatasetInfo& info() const { return info_; }

  // Samples in one epoch of kTrain, or in the whole of kVal. Text: windows of `context` tokens
  // (src/data/sampler.h). Images: the images; `context` is ignored.
  virtual int64_t windows(Split split, int64_t context) const = 0;

  // Empty unless training windows hold documents.
  virtual std::optional<PackingCosts> packing_costs() const { return std::nullopt; }

  // Throws when the split has no window: the data are shorter than the context, or empty.
  void require_windows(Split split, int64_t context) const;

  // Samples `position` to `position + count` of the endless training sequence (src/data/sampler.h).
  // A pure function of its arguments and the file.
  virtual MicroBatch training_batch(const TrainingOptions& options, int64_t position,
                                    int64_t count) const = 0;

  // Validation samples `first` to `first + count`, fewer at the end of the split. Text: the last
  // window is filled up with token 0 and kIgnoreTarget.
  virtual MicroBatch validation_batch(int64_t context, int64_t first, int64_t count) const = 0;

 protected:
  explicit Dataset(DatasetInfo info) : info_(std::move(info)) {}

  DatasetInfo info_;
};

// Opens a dataset of either kind. Throws kConfig if it cannot be read in these windows: documents
// need starts, and a stream knows no tokens that are only read.
std::unique_ptr<Dataset> open_dataset(const std::string& path, const Windows& windows = {});

// What the content hash covers, in this order. Text: the tokenizer, then the bytes of tokens,
// starts and loss of train and of val as stored. Images: class names, then images and labels of
// train and of val. Then the description: kind, format, counts, vocab_size, image shape, mean and
// std.
void add_to_hash(const Tokenizer& tokenizer, ContentHash* hash);
void add_to_hash(const std::vector<std::string>& classes, ContentHash* hash);
void add_to_hash(const DatasetInfo& description, ContentHash* hash);

}  // namespace tandem

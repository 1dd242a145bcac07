#include "src/data/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/visible_text.h"
#include "src/data/document_dataset.h"
#include "src/data/image_dataset.h"
#include "src/data/token_dataset.h"

namespace tandem {
namespace {

constexpr int64_t kFormatWithoutStarts = 3;

std::string object(Split split, const char* name) { return str("/", name_of(split), "/", name); }

// The root attribute with this name; 0 if it has no values.
int64_t integer_of(const H5Reader& file, const std::string& attribute) {
  const auto values = file.int_attribute("/", attribute);
  return values.empty() ? 0 : values[0];
}

void inspect_text(const H5Reader& file, DatasetInfo* info) {
  info->train_count = file.dataset("/train/tokens").count;
  info->val_count = file.dataset("/val/tokens").count;
  info->tokenizer = file.string_attribute("/tokenizer", "kind");
  info->vocab_size = integer_of(file, "vocab_size");
  constexpr int64_t kLargestVocabulary = int64_t{1} << 30;
  if (info->vocab_size <= 0 || info->vocab_size > kLargestVocabulary) {
    fail_data(info->path, ": vocab_size = ", info->vocab_size,
              " is not the size of a vocabulary; prepare the data again");
  }
  if (info->train_count == 0) {
    fail_data(info->path, ": the training set is empty; prepare the data again");
  }
  info->is_masked = file.exists("/train/loss") || file.exists("/val/loss");
  for (const Split split : {Split::kTrain, Split::kVal}) {
    const int64_t tokens = split == Split::kTrain ? info->train_count : info->val_count;
    if (info->is_masked && file.dataset(object(split, "loss")).count != tokens) {
      fail_data(info->path, ": ", object(split, "loss"), " must have a number for each of the ",
                tokens, " tokens; prepare the data again");
    }
  }
}

void inspect_images(const H5Reader& file, DatasetInfo* info) {
  const H5Dataset train = file.dataset("/train/images");
  const H5Dataset val = file.dataset("/val/images");
  if (train.shape.size() != 4 || val.shape.size() != 4 || train.count == 0 ||
      !std::equal(train.shape.begin() + 1, train.shape.end(), val.shape.begin() + 1)) {
    fail_data(info->path,
              ": /train/images and /val/images must be [N, C, H, W] of one image size, with at "
              "least one training image");
  }
  info->train_count = train.shape[0];
  info->val_count = val.shape[0];
  info->channels = train.shape[1];
  info->height = train.shape[2];
  info->width = train.shape[3];
  read_classes(file, info);
}

bool is_hash(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

DatasetInfo inspect(const H5Reader& file) {
  DatasetInfo info;
  info.path = file.path();
  info.file_bytes = file.file_bytes();
  const std::string kind =
      file.has_attribute("/", "kind") ? file.string_attribute("/", "kind") : "";
  if (kind != "text" && kind != "images") {
    fail_data(file.path(), ": an HDF5 file, but not a dataset of `tandem prepare`");
  }
  info.format = file.has_attribute("/", "format") ? integer_of(file, "format") : 1;
  if (info.format != kDatasetFormat && info.format != kFormatWithoutStarts) {
    fail_data(info.path, ": dataset format ", info.format, ", where ", kFormatWithoutStarts,
              " and ", kDatasetFormat, " are read; prepare the data again");
  }
  info.content_hash = file.string_attribute("/", "content_hash");
  if (!is_hash(info.content_hash)) {
    fail_data(info.path, ": the attribute content_hash is damaged; prepare the data again");
  }
  info.kind = kind == "text" ? DatasetKind::kText : DatasetKind::kImages;
  if (info.kind == DatasetKind::kText) {
    inspect_text(file, &info);
  } else {
    inspect_images(file, &info);
  }
  return info;
}

// Adds the bytes of a dataset, whatever their type.
template <class T>
void add_values(const H5Reader& file, const H5Dataset& dataset, ContentHash* hash) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  std::vector<T> values;
  for (int64_t start = 0; start < dataset.count; start += kBlock) {
    values.resize(static_cast<size_t>(std::min(kBlock, dataset.count - start)));
    file.read(dataset, start, std::span<T>(values));
    hash->add(values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
}

void add_vocabulary(const H5Reader& file, const DatasetInfo& info, ContentHash* hash) {
  if (info.kind == DatasetKind::kText) {
    add_to_hash(*load_tokenizer(file), hash);
  } else {
    add_to_hash(info.classes, hash);
  }
}

namespace fs = std::filesystem;

struct Source {
  std::string_view ending, kind, options;
};

constexpr Source kSources[] = {{".txt", "text", " --tokenizer char"},
                               {".txt.gz", "text", " --tokenizer char"},
                               {".jsonl", "text", " --field text --tokenizer char"},
                               {".jsonl.gz", "text", " --field text --tokenizer char"},
                               {".csv", "text", " --column text --tokenizer char"},
                               {".csv.gz", "text", " --column text --tokenizer char"},
                               {".tar", "images", ""},
                               {".tar.gz", "images", ""},
                               {"", "images", ""}};  // a folder

// How to make the dataset `output` of `from`; empty if there is no such file or folder.
std::string how_to_prepare(const Source& source, const std::string& from,
                           const std::string& output) {
  const bool is_there = source.ending.empty() ? fs::is_directory(from) : fs::is_regular_file(from);
  return is_there
             ? str("; make a dataset of ", from, ": `tandem prepare ", source.kind, " --input ",
                   shell_word(from), " --output ", shell_word(output), source.options, "`")
             : "";
}

// If `path` is a text file, a folder or an archive instead of a dataset, or if there is none and
// one of these lies beside it, or in the working directory, under the same name (book.txt for
// data/book.h5): "; make a dataset of book.txt: `tandem prepare text --input book.txt --output
// data/book.h5 --tokenizer char`". If there is nothing, where to read on; otherwise empty.
std::string source_hint(const std::string& path) {
  const bool exists = fs::exists(path);
  const std::string name = path.substr(0, path.find_last_not_of('/') + 1);
  const fs::path stem = fs::path(path).replace_extension();
  for (const Source& source : kSources) {
    const std::string ending(source.ending);
    std::string hint;
    if (exists && name.ends_with(ending)) {
      hint = how_to_prepare(source, name, name.substr(0, name.size() - ending.size()) + ".h5");
    } else if (!exists) {
      hint = how_to_prepare(source, stem.string() + ending, path);
      hint = hint.empty() ? how_to_prepare(source, stem.filename().string() + ending, path) : hint;
    }
    if (!hint.empty()) {
      return hint;
    }
  }
  return exists || !path.ends_with(".h5")
             ? ""
             : "; a shipped configuration says in its first lines how to make its dataset";
}

}  // namespace

std::string_view name_of(DatasetKind kind) {
  return kind == DatasetKind::kText ? "text" : "images";
}

std::string_view name_of(Split split) { return split == Split::kTrain ? "train" : "val"; }

std::string DatasetInfo::fingerprint() const { return str(content_hash, ":", file_bytes); }

std::string PackingCosts::text() const {
  return str(std::round(1000 * padding) / 10, " % padding, ", counted(documents_cut, "cut"),
             " in documents");
}

std::string vocabulary_hash(const std::string& path) {
  const H5Reader file(path);
  ContentHash hash;
  add_vocabulary(file, inspect(file), &hash);
  return hash.digest().hex();
}

DatasetInfo inspect_dataset(const std::string& path) {
  try {
    return inspect(H5Reader(path));
  } catch (const Error& error) {
    fail(error.code(), error.what() + source_hint(path));
  }
}

std::string compute_content_hash(const std::string& path) {
  const H5Reader file(path);
  const DatasetInfo info = inspect(file);
  ContentHash hash;
  add_vocabulary(file, info, &hash);
  for (const Split split : {Split::kTrain, Split::kVal}) {
    if (info.kind == DatasetKind::kImages) {
      add_values<uint8_t>(file, file.dataset(object(split, "images")), &hash);
      add_values<int32_t>(file, file.dataset(object(split, "labels")), &hash);
      continue;
    }
    const H5Dataset tokens = file.dataset(object(split, "tokens"));
    if (tokens.type == H5Type::kU16) {
      add_values<uint16_t>(file, tokens, &hash);
    } else {
      add_values<uint32_t>(file, tokens, &hash);
    }
    if (info.has_documents()) {
      add_values<uint64_t>(file, file.dataset(object(split, "starts")), &hash);
    }
    if (info.is_masked) {
      add_values<uint8_t>(file, file.dataset(object(split, "loss")), &hash);
    }
  }
  add_to_hash(info, &hash);
  return hash.digest().hex();
}

void verify_content(const DatasetInfo& info, bool also_large) {
  if (!also_large && info.file_bytes > kQuicklyVerified) {
    return;
  }
  if (info.has_documents()) {
    const TokenDataset text(info);
    text.document_starts(Split::kTrain);
    text.document_starts(Split::kVal);
  }
  if (compute_content_hash(info.path) != info.content_hash) {
    fail_data(info.path,
              ": the content does not have the hash that was stored with it: damaged or changed; "
              "copy or prepare it again");
  }
}

void require_kind(const DatasetInfo& info, DatasetKind kind, std::string_view model) {
  if (info.kind == kind) {
    return;
  }
  const bool wants_text = kind == DatasetKind::kText;
  fail_data("model ", model, " needs ", wants_text ? "a text" : "an image", " dataset; ", info.path,
            " holds ", name_of(info.kind), "; prepare one with `tandem prepare ", name_of(kind),
            "`");
}

void Dataset::require_windows(Split split, int64_t context) const {
  if (windows(split, context) > 0) {
    return;
  }
  const int64_t count = split == Split::kTrain ? info_.train_count : info_.val_count;
  const bool is_text = info_.kind == DatasetKind::kText;
  if (split == Split::kVal) {
    fail_data(info_.path, ": the validation set is empty (", count, is_text ? " tokens" : " images",
              "); prepare the data with a larger --val-fraction");
  }
  if (is_text) {
    fail_data(info_.path, ": the context of ", context, " tokens needs ", context + 1,
              " tokens of training text; there are ", count,
              ": lower model.context or prepare more text");
  }
  fail_data(info_.path, ": the training set is empty");
}

std::unique_ptr<Dataset> open_dataset(const std::string& path, const Windows& windows) {
  DatasetInfo info = inspect_dataset(path);
  if (info.kind == DatasetKind::kImages) {
    return std::make_unique<ImageDataset>(std::move(info));
  }
  if (windows.kind == WindowKind::kStream) {
    if (info.is_masked) {
      fail(ExitCode::kConfig, "data.windows = stream: ", path,
           " has tokens that are only read, which a stream would predict; "
           "use documents");
    }
    return std::make_unique<TokenDataset>(std::move(info));
  }
  if (!info.has_documents()) {
    fail(ExitCode::kConfig, "data.windows = documents: ", path,
         " does not say where its documents begin; prepare it again with "
         "`tandem prepare text`, or use stream");
  }
  return std::make_unique<DocumentDataset>(std::move(info), windows);
}

void add_to_hash(const Tokenizer& tokenizer, ContentHash* hash) {
  hash->add(tokenizer.kind());
  for (int64_t token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string_view piece = tokenizer.piece(static_cast<int32_t>(token));
    const auto length = static_cast<uint32_t>(piece.size());
    hash->add(&length, sizeof(length));
    hash->add(piece);
  }
  hash->add(tokenizer.definition());
}

void add_to_hash(const std::vector<std::string>& classes, ContentHash* hash) {
  for (const std::string& name : classes) {
    hash->add(name + "\n");
  }
}

void add_to_hash(const DatasetInfo& description, ContentHash* hash) {
  const DatasetInfo& d = description;
  hash->add(name_of(d.kind));
  const auto add_all = [&](const auto& values) {
    hash->add(values.data(), static_cast<int64_t>(values.size() * sizeof(values[0])));
  };
  add_all(std::array{d.format, d.train_count, d.val_count, d.vocab_size, d.channels, d.height,
                     d.width});
  add_all(d.mean);
  add_all(d.std);
}

}  // namespace tandem

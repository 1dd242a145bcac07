#include "src/data/dataset.h"

#include <algorithm>
#include <sstream>

#include "src/core/error.h"

namespace tandem {
namespace {

std::string object(Split split, const char* name) { return str("/", name_of(split), "/", name); }

void inspect_text(const H5Reader& file, DatasetInfo* info) {
  info->train_count = file.dataset("/train/tokens").count;
  info->val_count = file.dataset("/val/tokens").count;
  info->tokenizer = file.string_attribute("/tokenizer", "kind");
  const auto vocab_size = file.int_attribute("/", "vocab_size");
  info->vocab_size = vocab_size.empty() ? 0 : vocab_size[0];
  if (info->vocab_size <= 0 || info->train_count == 0) {
    fail(ExitCode::kData, str(info->path, ": the training part is empty; prepare it again"));
  }
}

void inspect_images(const H5Reader& file, DatasetInfo* info) {
  std::istringstream names(file.string_attribute("/", "class_names"));
  for (std::string name; std::getline(names, name);) {
    info->classes.push_back(name);
  }
  info->mean = file.double_attribute("/", "mean");
  info->std = file.double_attribute("/", "std");
  const H5Dataset train = file.dataset("/train/images");
  const H5Dataset val = file.dataset("/val/images");
  if (train.shape.size() != 4 || val.shape.size() != 4 || train.count == 0 ||
      !std::equal(train.shape.begin() + 1, train.shape.end(), val.shape.begin() + 1)) {
    fail(ExitCode::kData, str(info->path,
                              ": /train/images and /val/images must be [N, C, H, W] of one image "
                              "size, with at least one training image"));
  }
  info->train_count = train.shape[0];
  info->val_count = val.shape[0];
  info->channels = train.shape[1];
  info->height = train.shape[2];
  info->width = train.shape[3];
  const auto channels = static_cast<size_t>(info->channels);
  const bool positive =
      std::all_of(info->std.begin(), info->std.end(), [](double value) { return value > 0.0; });
  if (info->mean.size() != channels || info->std.size() != channels || !positive) {
    fail(ExitCode::kData, str(info->path,
                              ": the attributes mean and std must have one number for "
                              "each of the ",
                              channels, " channels, and std be positive"));
  }
}

DatasetInfo inspect(const H5Reader& file) {
  DatasetInfo info;
  info.path = file.path();
  info.file_bytes = file.file_bytes();
  const std::string kind =
      file.has_attribute("/", "kind") ? file.string_attribute("/", "kind") : "";
  if (kind != "text" && kind != "images") {
    fail(ExitCode::kData,
         str(file.path(), ": an HDF5 file, but not a dataset of `tandem prepare`"));
  }
  info.content_hash = file.string_attribute("/", "content_hash");
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

template <class Stored>
void read_tokens(const H5Reader& file, const H5Dataset& tokens, int64_t start,
                 std::span<int32_t> out, int64_t vocab_size) {
  thread_local std::vector<Stored> stored;
  stored.resize(out.size());
  file.read(tokens, start, std::span<Stored>(stored));
  for (size_t i = 0; i < out.size(); ++i) {
    if (static_cast<int64_t>(stored[i]) >= vocab_size) [[unlikely]] {
      fail(ExitCode::kData,
           str(file.path(), ": ", tokens.name, ": token id ", stored[i], " at position ",
               start + static_cast<int64_t>(i), " is outside the vocabulary of ", vocab_size));
    }
    out[i] = static_cast<int32_t>(stored[i]);
  }
}

}  // namespace

std::string_view name_of(DatasetKind kind) {
  return kind == DatasetKind::kText ? "text" : "images";
}

std::string_view name_of(Split split) { return split == Split::kTrain ? "train" : "val"; }

std::string DatasetInfo::fingerprint() const { return str(content_hash, ":", file_bytes); }

DatasetInfo inspect_dataset(const std::string& path) { return inspect(H5Reader(path)); }

std::string compute_content_hash(const std::string& path) {
  const H5Reader file(path);
  const DatasetInfo info = inspect(file);
  ContentHash hash;
  if (info.kind == DatasetKind::kText) {
    add_to_hash(*load_tokenizer(file), &hash);
  } else {
    add_to_hash(info.classes, &hash);
  }
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
  }
  return hash.digest().hex();
}

void require_kind(const DatasetInfo& info, DatasetKind kind, std::string_view model) {
  if (info.kind == kind) {
    return;
  }
  const bool wants_text = kind == DatasetKind::kText;
  fail(ExitCode::kData, str("model ", model, " needs ", wants_text ? "a text" : "an image",
                            " dataset; ", info.path, " holds ", name_of(info.kind),
                            "; prepare one with `tandem prepare ", name_of(kind), "`"));
}

TokenDataset::TokenDataset(const std::string& path) : info_(inspect_dataset(path)), file_(path) {
  require(info_.kind == DatasetKind::kText, "TokenDataset: not a text dataset");
  train_ = file_.dataset(object(Split::kTrain, "tokens"));
  val_ = file_.dataset(object(Split::kVal, "tokens"));
  for (const H5Dataset* tokens : {&train_, &val_}) {
    if (tokens->type != H5Type::kU16 && tokens->type != H5Type::kU32) {
      fail(ExitCode::kData,
           str(path, ": ", tokens->name, " must hold u16 or u32, not ", name_of(tokens->type)));
    }
  }
}

int64_t TokenDataset::count(Split split) const { return tokens(split).count; }

void TokenDataset::read(Split split, int64_t start, std::span<int32_t> out) const {
  const H5Dataset& from = tokens(split);
  if (from.type == H5Type::kU16) {
    read_tokens<uint16_t>(file_, from, start, out, info_.vocab_size);
  } else {
    read_tokens<uint32_t>(file_, from, start, out, info_.vocab_size);
  }
}

ImageDataset::ImageDataset(const std::string& path) : info_(inspect_dataset(path)), file_(path) {
  require(info_.kind == DatasetKind::kImages, "ImageDataset: not an image dataset");
  train_ = open_part(Split::kTrain);
  val_ = open_part(Split::kVal);
}

ImageDataset::Part ImageDataset::open_part(Split split) const {
  Part part{file_.dataset(object(split, "images")),
            file_.read_all<int32_t>(object(split, "labels"))};
  if (static_cast<int64_t>(part.labels.size()) != part.images.shape[0]) {
    fail(ExitCode::kData, str(info_.path, ": ", part.images.name, " holds ", part.images.shape[0],
                              " images, but there are ", part.labels.size(), " labels"));
  }
  return part;
}

int64_t ImageDataset::count(Split split) const { return part(split).images.shape[0]; }

int32_t ImageDataset::read(Split split, int64_t index, std::span<uint8_t> pixels) const {
  const Part& from = part(split);
  const auto size = static_cast<int64_t>(pixels.size());
  require(size == info_.channels * info_.height * info_.width, "ImageDataset: wrong pixel count");
  file_.read(from.images, index * size, pixels);
  const int32_t label = from.labels[static_cast<size_t>(index)];
  if (label < 0 || label >= static_cast<int32_t>(info_.classes.size())) {
    fail(ExitCode::kData, str(info_.path, ": ", object(split, "labels"), ": label ", label, " at ",
                              index, " is none of the ", info_.classes.size(), " classes"));
  }
  return label;
}

void add_to_hash(const Tokenizer& tokenizer, ContentHash* hash) {
  hash->add(tokenizer.kind());
  for (int64_t token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string_view piece = tokenizer.piece(static_cast<int32_t>(token));
    const auto length = static_cast<uint32_t>(piece.size());
    hash->add(&length, sizeof(length));
    hash->add(piece);
  }
}

void add_to_hash(const std::vector<std::string>& classes, ContentHash* hash) {
  for (const std::string& name : classes) {
    hash->add(name);
    hash->add("\n");
  }
}

}  // namespace tandem

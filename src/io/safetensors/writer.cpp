#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/io/safetensors/header.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPiece = 1 << 18;  // elements that are rounded at once
constexpr size_t kAlignment = 64;   // of the data in the file

int64_t bytes_of(const SafetensorsEntry& tensor) {
  return tensor.elements() * bits_of_safetensors_type(tensor.dtype) / 8;
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) {
    return "model.safetensors";
  }
  return str("model-", std::setfill('0'), std::setw(5), index + 1, "-of-", std::setw(5), count,
             ".safetensors");
}

template <class T>
std::string rounded(std::span<const float> values, const SafetensorsEntry& tensor) {
  std::string bytes(values.size() * sizeof(T), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const T value(values[i]);
    if (std::isinf(static_cast<float>(value)) && !std::isinf(values[i])) {
      fail_data("tensor ", tensor.name, " has the value ", values[i], ", which is too large for ",
                tensor.dtype, "; write f32, or for F16 bf16");
    }
    std::copy_n(reinterpret_cast<const char*>(&value), sizeof(T), &bytes[i * sizeof(T)]);
  }
  return bytes;
}

std::string bytes_of(std::span<const float> values, const SafetensorsEntry& tensor) {
  if (tensor.dtype == "F32") {
    return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
  }
  return tensor.dtype == "BF16" ? rounded<Bf16>(values, tensor) : rounded<Fp16>(values, tensor);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& folder,
                                     std::vector<SafetensorsEntry> tensors, int64_t shard_bytes)
    : folder_(folder), tensors_(std::move(tensors)) {
  for (const SafetensorsEntry& tensor : tensors_) {
    const std::string& dtype = tensor.dtype;
    require((dtype == "F32" || dtype == "BF16" || dtype == "F16") && dtype == tensors_[0].dtype,
            "SafetensorsWriter: all F32, all BF16 or all F16");
  }
  shards_.emplace_back();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int64_t bytes = bytes_of(tensors_[i]);
    if (shards_.back().bytes > 0 && bytes > shard_bytes - shards_.back().bytes) {
      shards_.push_back({.begin = i});
    }
    shards_.back().end = i + 1;
    shards_.back().bytes += bytes;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].name = shard_name(i, shards_.size());
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  for (size_t i = 0; i < begun_ && !committed_; ++i) {
    ::unlink(partial_path(shards_[i]).c_str());
  }
}

std::string SafetensorsWriter::partial_path(const Shard& shard) const {
  return str(folder_, "/", shard.name, ".partial");
}

std::string SafetensorsWriter::header_of(const Shard& shard) const {
  Json json = {{"__metadata__", {{"format", "pt"}}}};
  int64_t at = 0;
  for (size_t i = shard.begin; i < shard.end; ++i) {
    const SafetensorsEntry& tensor = tensors_[i];
    const int64_t end = at + bytes_of(tensor);
    const bool is_new = json.emplace(tensor.name, Json{{"dtype", tensor.dtype},
                                                       {"shape", tensor.shape},
                                                       {"data_offsets", {at, end}}})
                            .second;
    require(is_new, "SafetensorsWriter: a name stands twice");
    at = end;
  }
  std::string text = json.dump();
  const size_t length = sizeof(uint64_t) + text.size();
  text.append((kAlignment - length % kAlignment) % kAlignment, ' ');
  const uint64_t count = text.size();
  return std::string(reinterpret_cast<const char*>(&count), sizeof(count)) + text;
}

std::string SafetensorsWriter::index() const {
  int64_t bytes = 0;
  Json map = Json::object();
  for (const Shard& shard : shards_) {
    for (size_t i = shard.begin; i < shard.end; ++i) {
      map[tensors_[i].name] = shard.name;
    }
    bytes += shard.bytes;
  }
  return Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(2) + "\n";
}

// Goes on to the tensor that has elements to be written, and to its shard.
void SafetensorsWriter::skip_complete() {
  while (true) {
    if (begun_ == 0 || (tensor_ == shards_[begun_ - 1].end && begun_ < shards_.size())) {
      if (file_) {
        file_->sync();
      }
      const Shard& shard = shards_[begun_++];
      file_ = std::make_unique<FileWriter>(partial_path(shard), FileWriter::Start::kEmpty);
      file_->write(header_of(shard));
    } else if (tensor_ < tensors_.size() && written_ == tensors_[tensor_].elements()) {
      ++tensor_;
      written_ = 0;
    } else {
      return;
    }
  }
}

void SafetensorsWriter::write(std::span<const float> values) {
  skip_complete();
  while (!values.empty()) {
    require(tensor_ < tensors_.size(), "SafetensorsWriter: more elements than the tensors have");
    const SafetensorsEntry& tensor = tensors_[tensor_];
    const size_t count =
        std::min({values.size(), kPiece, static_cast<size_t>(tensor.elements() - written_)});
    file_->write(bytes_of(values.first(count), tensor));
    written_ += static_cast<int64_t>(count);
    values = values.subspan(count);
    skip_complete();
  }
}

void SafetensorsWriter::commit() {
  skip_complete();
  require(tensor_ == tensors_.size(), "SafetensorsWriter: elements are missing");
  file_->sync();
  for (const Shard& shard : shards_) {
    rename_path(partial_path(shard), str(folder_, "/", shard.name));
  }
  committed_ = true;
  if (shards_.size() > 1) {
    replace_file(folder_ + "/model.safetensors.index.json", index());
  }
  sync_path(folder_);
}

}  // namespace tandem

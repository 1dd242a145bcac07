#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "src/core/error.h"
#include "src/io/safetensors/header.h"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostShards = 512;  // all are open at the same time
constexpr int64_t kPiece = 32768;    // elements that are widened at once
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

[[noreturn]] void refuse_pickle(const std::string& path) {
  fail_data(path,
            ": PyTorch's pickle format, which runs code of its author when it is read; convert it "
            "first: load the model in Python and call save_pretrained, which writes safetensors");
}

// In safetensors the header begins with { after the eight bytes of its length.
bool is_pickle(std::string_view start) {
  const auto byte = [&](size_t i) {
    return i < start.size() ? static_cast<unsigned char>(start[i]) : 0;
  };
  return byte(8) != '{' && (start.starts_with("PK\3\4") || (byte(0) == 0x80 && byte(1) <= 5));
}

bool exists(const std::string& path) {
  std::error_code ignored;  // a name that is too long
  return fs::exists(path, ignored);
}

std::string read_text(const std::string& path) {
  const FileReader file(path);
  if (file.bytes() > kLargestSafetensorsHeader) {
    fail_data(path, ": an index of ", file.bytes(), " bytes; at most ", kLargestSafetensorsHeader,
              " are read");
  }
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  file.read(0, file.bytes(), text.data());
  return text;
}

// Reads and checks the header. Sets the byte of the file where the data begin.
std::vector<SafetensorsPlace> read_header(const FileReader& file, int64_t* data) {
  constexpr int64_t kLength = 8;
  constexpr std::string_view kLfsPointer = "version https://git-lfs";
  char start[kLfsPointer.size()] = {};
  file.read(0, std::min<int64_t>(file.bytes(), sizeof(start)), start);
  if (is_pickle({start, sizeof(start)})) {
    refuse_pickle(file.path());
  }
  if (std::string_view(start, sizeof(start)) == kLfsPointer) {
    fail_data(file.path(),
              ": only a pointer of Git LFS; fetch the file itself with `git lfs pull`");
  }
  if (file.bytes() < kLength) {
    fail_data(file.path(), ": not safetensors: it has only ", file.bytes(), " bytes");
  }
  uint64_t length = 0;
  std::copy_n(start, kLength, reinterpret_cast<char*>(&length));
  if (length > static_cast<uint64_t>(kLargestSafetensorsHeader)) {
    fail_data(file.path(), ": not safetensors: a header of ", length, " bytes; at most ",
              kLargestSafetensorsHeader, " are allowed");
  }
  *data = kLength + static_cast<int64_t>(length);
  if (*data > file.bytes()) {
    fail_data(file.path(), ": a header of ", length, " bytes, but the file has only ", file.bytes(),
              "; it may be cut short");
  }
  if (start[kLength] != '{') {
    fail_data(file.path(), ": not safetensors: the header does not begin with {");
  }
  std::string header(length, '\0');
  file.read(kLength, static_cast<int64_t>(length), header.data());
  return parse_safetensors_header(header, file.bytes() - *data, file.path());
}

// What a folder has to be opened.
std::string choose_in(const std::string& folder) {
  for (const char* name : {kSingle, kIndex}) {
    if (const std::string path = str(folder, "/", name); exists(path)) {
      return path;
    }
  }
  std::error_code ignored;  // a folder that cannot be listed
  for (const fs::directory_entry& file : fs::directory_iterator(folder, ignored)) {
    const std::string kind = file.path().extension().string();
    if (kind == ".bin" || kind == ".pt" || kind == ".pth" || kind == ".ckpt") {
      refuse_pickle(file.path().string());
    }
  }
  fail_data(folder, ": there is no ", kSingle, " and no ", kIndex);
}

template <class T>
void read_widened(const FileReader& file, int64_t at, std::span<float> out) {
  std::vector<T> piece(std::min<size_t>(out.size(), kPiece));
  while (!out.empty()) {
    const size_t count = std::min(out.size(), piece.size());
    const int64_t bytes = static_cast<int64_t>(count * sizeof(T));
    file.read(at, bytes, piece.data());
    std::copy_n(piece.begin(), count, out.begin());
    at += bytes;
    out = out.subspan(count);
  }
}

}  // namespace

int64_t SafetensorsEntry::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string_view safetensors_name_of(DType dtype) {
  require(dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kFp16,
          "safetensors: f32, bf16 or fp16");
  return dtype == DType::kF32 ? "F32" : (dtype == DType::kBf16 ? "BF16" : "F16");
}

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  std::error_code ignored;  // opening the path tells more
  const std::string file = fs::is_directory(path, ignored) ? choose_in(path) : path;
  if (file.ends_with(".index.json")) {
    open_index(file);
  } else {
    open(file);
  }
  std::ranges::sort(tensors_, {}, &SafetensorsEntry::name);
}

void SafetensorsReader::open(const std::string& path) {
  files_.push_back(std::make_unique<FileReader>(path));
  int64_t data = 0;
  for (SafetensorsPlace& tensor : read_header(*files_.back(), &data)) {
    places_.emplace(tensor.entry.name, Place{files_.size() - 1, data + tensor.begin});
    tensors_.push_back(std::move(tensor.entry));
  }
}

// Each tensor must be in the shard that the index names, and in no other.
void SafetensorsReader::open_index(const std::string& path) {
  std::map<std::string, std::vector<std::string>> shards;  // the tensors of each, sorted
  for (const SafetensorsMapping& one : parse_safetensors_index(read_text(path), path)) {
    shards[one.shard].push_back(one.tensor);
  }
  const std::string folder = fs::path(path).parent_path().string();
  const std::string prefix = folder.empty() ? "" : folder + "/";
  for (const auto& [name, expected] : shards) {
    const std::string shard = prefix + name;
    if (files_.size() == kMostShards) {
      fail_data(path, ": more than ", kMostShards, " shards");
    }
    if (!exists(shard)) {
      fail_data(shard, ": missing; ", path, " says that it has tensor ", shown_name(expected[0]));
    }
    const auto before = std::ssize(tensors_);
    open(shard);
    // Both are sorted by name, so where they part the smaller name is in one of them only.
    const auto [found, wanted] =
        std::ranges::mismatch(tensors_.begin() + before, tensors_.end(), expected.begin(),
                              expected.end(), {}, &SafetensorsEntry::name);
    if (found != tensors_.end() && (wanted == expected.end() || found->name < *wanted)) {
      fail_data(shard, ": tensor ", shown_name(found->name), ": ", path,
                " does not say that it is here");
    }
    if (wanted != expected.end()) {
      fail_data(shard, ": tensor ", shown_name(*wanted), " is missing; ", path,
                " says that it is here");
    }
  }
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &SafetensorsEntry::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

void SafetensorsReader::read(std::string_view name, int64_t first, std::span<float> out) const {
  const SafetensorsEntry* tensor = find(name);
  if (tensor == nullptr) {
    fail_data(path_, ": tensor ", shown_name(std::string(name)), " is missing");
  }
  require(first >= 0 && std::ssize(out) <= tensor->elements() - first,
          "safetensors: elements beyond the end of a tensor");
  const Place& place = places_.at(tensor->name);
  const FileReader& file = *files_[place.file];
  const auto at = [&](int64_t size) { return place.begin + first * size; };
  try {
    if (tensor->dtype == "F32") {
      file.read(at(sizeof(float)), static_cast<int64_t>(out.size_bytes()), out.data());
    } else if (tensor->dtype == "BF16") {
      read_widened<Bf16>(file, at(sizeof(Bf16)), out);
    } else if (tensor->dtype == "F16") {
      read_widened<Fp16>(file, at(sizeof(Fp16)), out);
    } else {
      fail_data(file.path(), ": type ", tensor->dtype, "; only F32, F16 and BF16 are read");
    }
  } catch (const Error& error) {
    fail(error.code(), str(error.what(), " (tensor ", shown_name(tensor->name), ")"));
  }
}

}  // namespace tandem

// Safetensors, the format in which Hugging Face keeps weights: reading and writing one file, or
// shards with an index.
//
//     8 bytes    the header's length, little-endian
//     header     JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//     the rest   the tensors' bytes, row-major and little-endian, without gaps
//
// A folder has `model.safetensors`, or shards and `model.safetensors.index.json`, which says in
// which shard each tensor is. https://github.com/huggingface/safetensors#format
//
// When something is wrong on the disk, all functions throw Error(kData) with one line that names
// the file, and the tensor where there is one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/core/dtype.h"
#include "src/io/file.h"

namespace tandem {

struct SafetensorsEntry {
  std::string name{};
  std::string dtype{"F32"};  // as in the file: "F32", "F16", "BF16", "I64", "BOOL", ...
  std::vector<int64_t> shape{};

  int64_t elements() const;
  bool operator==(const SafetensorsEntry&) const = default;
};

// The name of this dtype in a file: F32, BF16 or F16. For other types an internal error.
std::string_view safetensors_name_of(DType dtype);

// Reads any part of any tensor. Any thread may read.
//
// The constructor checks all headers, whose bytes may be anybody's, and keeps the files open: at
// most 512. Links are followed. Nothing is mapped: a file that shrinks meanwhile is an error too.
class SafetensorsReader {
 public:
  // `path` is a file, an index, or a folder with one of the two. Files of PyTorch's pickle format
  // are refused: reading them would run their code.
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }  // sorted by name
  const SafetensorsEntry* find(std::string_view name) const;                 // nullptr: none

  // Widens elements [first, first + out.size()) of a tensor of F32, F16 or BF16, exactly. Throws
  // when there is no such tensor, and when it has another type. Reads no other bytes.
  void read(std::string_view name, int64_t first, std::span<float> out) const;

 private:
  struct Place {
    size_t file;
    int64_t begin;  // byte of the first element
  };
  void open(const std::string& path);
  void open_index(const std::string& path);

  std::string path_;
  std::vector<std::unique_ptr<FileReader>> files_;
  std::vector<SafetensorsEntry> tensors_;
  std::unordered_map<std::string, Place> places_;  // by the tensor's name
};

// Writes `model.safetensors` into a folder, or, when the tensors have more bytes than a shard may
// have, `model-00001-of-00003.safetensors` and so on with their index. The metadata is
// {"format": "pt"}, which transformers wants. Data begin at a multiple of 64 bytes.
//
// Memory holds a piece of one tensor. Files have names that end in `.partial` until commit().
class SafetensorsWriter {
 public:
  // `tensors`: all F32, all BF16 or all F16, with unique names, in the order in which they will be
  // written. A shard has at most `shard_bytes` of data, or a single tensor. The folder exists.
  SafetensorsWriter(const std::string& folder, std::vector<SafetensorsEntry> tensors,
                    int64_t shard_bytes);
  ~SafetensorsWriter();  // removes what was not committed
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next elements of the tensors, one after the other, rounded to nearest even. A finite number
  // that becomes infinite is an Error(kData), where PyTorch's narrowing would write infinity.
  // Infinities and NaN stay what they are.
  void write(std::span<const float> values);

  // All elements were written. Syncs the files and gives them their names, the index last.
  void commit();

 private:
  struct Shard {
    std::string name{};
    size_t begin = 0, end = 0;  // of its tensors
    int64_t bytes = 0;          // of data
  };
  std::string partial_path(const Shard& shard) const;
  std::string header_of(const Shard& shard) const;
  std::string index() const;
  void skip_complete();

  std::string folder_;
  std::vector<SafetensorsEntry> tensors_;
  std::vector<Shard> shards_;
  std::unique_ptr<FileWriter> file_;  // of the last shard that was begun
  size_t begun_ = 0;                  // shards
  size_t tensor_ = 0;                 // the one whose elements come next
  int64_t written_ = 0;               // of its elements
  bool committed_ = false;
};

}  // namespace tandem

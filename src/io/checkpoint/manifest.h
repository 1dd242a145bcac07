// The manifest of a checkpoint: what the run needs to continue, and what its files must look like.
//
// It is written last and holds a hash of itself, so that a checkpoint with a valid manifest is
// complete.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/range.h"

namespace tandem {

// One file of a checkpoint, as its writer saw it.
struct FileEntry {
  std::string name{};           // "rank-0000.h5", without a directory
  int64_t length = 0;           // bytes
  std::vector<Range> pieces{};  // the bytes of pieces (src/io/checkpoint/checkpoint.h)
  std::string hash{};           // XXH3-128 of all other bytes, 32 hex digits as `xxh128sum` prints

  std::string text() const;                           // a line of JSON
  static FileEntry from_text(std::string_view text);  // throws when `text` is not one
  bool operator==(const FileEntry&) const = default;
};

// Reads a file and describes it. Throws Error(kData) when it cannot be read.
FileEntry describe_file(const std::string& path, std::vector<Range> pieces);

struct Manifest {
  static constexpr int kFormatVersion = 3;
  static constexpr int kOldestFormat = 2;  // whole parameters, not pieces (piece_source.h)

  int format_version = kFormatVersion;     // that its files are in
  std::string config;                      // the resolved configuration, as in config.cfg
  int64_t step = 0;                        // updates done
  int64_t sampler_epoch = 0;               // where the data continues: in this epoch,
  int64_t sampler_position = 0;            // after this many samples, over all ranks
  std::string data_hash;                   // content hash of the dataset that the run reads
  std::string vocabulary_hash{};           // of its tokenizer or classes
  uint64_t seed = 0;                       // the key of every random number
  std::map<std::string, double> schedule;  // state of the schedule and the loss scaler, by name
  int world_size = 1;
  std::optional<double> validation_loss;  // at `step`, if it was measured
  std::vector<FileEntry> files;           // by rank
  // Tensors that stand in another checkpoint or in a Hugging Face model.
  struct Base {
    std::string path;                  // its folder
    std::string hash;                  // of these tensors: hash_of_tensors()
    std::vector<std::string> tensors;  // names as in Slab
    bool operator==(const Base&) const = default;
  };
  std::vector<Base> bases{};

  bool operator==(const Manifest&) const = default;
};

// JSON. Numbers survive exactly; bytes of `config` that are not UTF-8 become U+FFFD. Numbers of the
// schedule that are not finite are left out; such a validation loss is null, and read as NaN.
std::string to_json(const Manifest& manifest);

// Throws Error(kData), naming `path`, when the text is not a manifest, was changed, or has an
// unknown format version.
Manifest manifest_from_json(const std::string& text, const std::string& path);

}  // namespace tandem

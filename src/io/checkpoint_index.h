// What is in the files of a checkpoint: its pieces, and where their bytes lie.
//
// Ranks that read a checkpoint together index a share of its files each and exchange the texts, so
// that each file is opened by one of them alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/slice.h"
#include "src/io/manifest.h"

namespace tandem {

struct CheckpointPiece {
  std::string name{};  // as in Slab
  Slice slice{};
  int64_t offset = 0;  // elements [offset, offset + count) of the slice, f32
  int64_t count = 0;
  int64_t byte = 0;    // of the first element in the file
  std::string hash{};  // XXH3-128 of its bytes, 32 hex digits; empty in format 1, which has none

  Range range() const { return {offset, offset + count}; }
  bool operator==(const CheckpointPiece&) const = default;
};

struct CheckpointIndex {
  // A file of the manifest, by its number there, with what is in it.
  struct File {
    size_t file = 0;
    std::vector<CheckpointPiece> pieces{};
    bool operator==(const File&) const = default;
  };
  std::vector<File> files{};

  std::string text() const;
  void add(std::string_view text);  // the files of another index's text()
  bool operator==(const CheckpointIndex&) const = default;
};

// The pieces of one file. Error(kData) names what is no piece of a checkpoint.
std::vector<CheckpointPiece> pieces_in(const std::string& path);

// The bytes of a file that are in pieces, in order.
std::vector<Range> bytes_of(const std::vector<CheckpointPiece>& pieces);

// Indexes the files number share, share + shares, ... of a checkpoint directory, whose bytes
// outside pieces must be those that were written: Error(kData) otherwise. This is found before
// HDF5 sees a file, because the library does not survive all damage.
CheckpointIndex index_files(const std::string& directory, const Manifest& manifest,
                            size_t share = 0, size_t shares = 1);

}  // namespace tandem

// What is in the files of a checkpoint: its pieces, and where their bytes are.
//
// Ranks that read a checkpoint together each index a share of its files, and exchange the indexes
// as text. Each file is thus indexed by one rank only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/slice.h"
#include "src/io/checkpoint/manifest.h"

namespace tandem {

struct CheckpointPiece {
  std::string name{};  // as in Slab
  Slice slice{};
  int64_t offset = 0;  // elements [offset, offset + count) of the slice, f32
  int64_t count = 0;
  int64_t byte = 0;    // position of the first element in the file
  std::string hash{};  // XXH3-128 of its bytes, 32 hex digits
  size_t file = 0;     // number of its file in the manifest

  Range range() const { return {offset, offset + count}; }
  bool operator==(const CheckpointPiece&) const = default;
};

struct CheckpointIndex {
  std::vector<CheckpointPiece> pieces{};

  std::string text() const;
  void add(std::string_view text);  // adds the pieces of another index's text()
  bool operator==(const CheckpointIndex&) const = default;
};

// The pieces of one file; their `file` is 0. Throws Error(kData) naming a dataset that is not a
// piece of a checkpoint.
std::vector<CheckpointPiece> pieces_in(const std::string& path);

// The bytes of a file that are in pieces, in order; adjacent ranges are merged.
std::vector<Range> bytes_of(const std::vector<CheckpointPiece>& pieces);

// Indexes the files number share, share + shares, ... of a checkpoint directory. Throws
// Error(kData) when bytes outside pieces are not those that were written.
CheckpointIndex index_files(const std::string& directory, const Manifest& manifest,
                            size_t share = 0, size_t shares = 1);

}  // namespace tandem

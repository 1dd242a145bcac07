// Reads any part of any tensor of a checkpoint, whatever number of ranks wrote it.
//
// To read from a piece, the reader hashes the whole piece and compares the hash with the one
// written. Bytes outside pieces are compared when a file is indexed. When something is wrong on the
// disk, all functions throw Error(kData) with one line.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/device/slab.h"
#include "src/io/checkpoint/checkpoint_index.h"
#include "src/io/file.h"

namespace tandem {

// Not thread-safe.
class CheckpointReader final : public TensorSource {
 public:
  // `index` holds all files. Throws when pieces contradict each other.
  CheckpointReader(const std::string& directory, Manifest manifest, const CheckpointIndex& index);
  // Reads the manifest and indexes all files.
  explicit CheckpointReader(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }

  struct Entry {
    std::string name;  // as in Slab
    Shape shape;
    int64_t elements = 0;  // in the files; if fewer than in the shape, some are missing
  };
  std::vector<Entry> tensors() const;  // sorted by name

  void require_tensor(const std::string& name, const Shape& shape) const override;
  void read(const Slab& slab) const override;
  std::string home_of(const std::string& /*name*/) const override { return directory_; }

 private:
  CheckpointReader(const std::string& directory, const Manifest& manifest);

  struct Logical {
    Shape shape;
    std::vector<CheckpointPiece> pieces;  // sorted by slice and offset, without overlaps
  };

  void add(const CheckpointPiece& piece);
  void sort_pieces();
  const FileReader& open(size_t file) const;
  template <class F>
  void read_piece(const CheckpointPiece& piece, F visit) const;

  std::string directory_;
  Manifest manifest_;
  std::map<std::string, Logical> tensors_;
  mutable std::unique_ptr<FileReader> open_;  // one open file at a time: there may be thousands
  mutable size_t open_file_ = 0;
};

}  // namespace tandem

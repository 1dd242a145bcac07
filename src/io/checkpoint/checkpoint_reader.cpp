#include "src/io/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <compare>
#include <filesystem>
#include <utility>

#include "src/core/error.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/content_hash.h"

namespace tandem {

namespace {

constexpr int64_t kChunk = int64_t{1} << 20;  // elements read at once
constexpr size_t kMostSlices = 1024;          // of a tensor; each is compared with all others

// Slices of one tensor are equal or disjoint, so their starts identify them.
bool is_before(const CheckpointPiece& a, const CheckpointPiece& b) {
  const std::span<const int64_t> start_a = a.slice.start().sizes(),
                                 start_b = b.slice.start().sizes();
  const auto order = std::lexicographical_compare_three_way(start_a.begin(), start_a.end(),
                                                            start_b.begin(), start_b.end());
  return order != 0 ? order < 0 : a.offset < b.offset;
}

bool has_some_of(const CheckpointPiece& piece, const Slab& slab) {
  if (piece.slice == slab.slice) {
    return intersection(piece.range(), slab.range()).count() > 0;
  }
  bool found = false;
  if (piece.slice.overlaps(slab.slice)) {
    visit_common(piece.slice, piece.range(), slab.slice, slab.range(),
                 [&](int64_t, int64_t, int64_t) { found = true; });
  }
  return found;
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& directory, Manifest manifest,
                                   const CheckpointIndex& index)
    : directory_(directory), manifest_(std::move(manifest)) {
  for (const CheckpointPiece& piece : index.pieces) {
    add(piece);
  }
  sort_pieces();
}

CheckpointReader::CheckpointReader(const std::string& directory, const Manifest& manifest)
    : CheckpointReader(directory, manifest, index_files(directory, manifest)) {}

CheckpointReader::CheckpointReader(const std::string& directory)
    : CheckpointReader(directory, read_manifest(directory)) {}

void CheckpointReader::add(const CheckpointPiece& piece) {
  Logical& logical =
      tensors_.try_emplace(piece.name, Logical{piece.slice.whole(), {}}).first->second;
  if (logical.shape != piece.slice.whole()) {
    fail_data(directory_, ": ", piece.name, " is ", piece.slice.whole(), " in ",
              manifest_.files[piece.file].name, " and ", logical.shape, " in another file");
  }
  if (piece.count > 0) {
    logical.pieces.push_back(piece);
  }
}

void CheckpointReader::sort_pieces() {
  for (auto& [name, logical] : tensors_) {
    std::ranges::sort(logical.pieces, is_before);
    std::vector<Slice> slices;
    int64_t end = 0;  // of the last slice's elements so far
    for (const CheckpointPiece& piece : logical.pieces) {
      if (slices.empty() || slices.back() != piece.slice) {
        end = 0;
        const auto overlaps = [&](const Slice& other) { return other.overlaps(piece.slice); };
        if (slices.size() == kMostSlices || std::ranges::any_of(slices, overlaps)) {
          fail_data(directory_, ": the slices of ", name, " overlap, or are more than ",
                    kMostSlices);
        }
        slices.push_back(piece.slice);
      }
      if (piece.offset < end) {
        fail_data(directory_, ": element ", piece.slice.run_at(piece.offset).begin, " of ", name,
                  " is there twice");
      }
      end = piece.range().end;
    }
  }
}

const FileReader& CheckpointReader::open(size_t file) const {
  if (open_ == nullptr || open_file_ != file) {
    open_ = std::make_unique<FileReader>(
        (std::filesystem::path(directory_) / manifest_.files[file].name).string());
    open_file_ = file;
  }
  return *open_;
}

std::vector<CheckpointReader::Entry> CheckpointReader::tensors() const {
  std::vector<Entry> entries;
  for (const auto& [name, logical] : tensors_) {
    Entry entry{.name = name, .shape = logical.shape, .elements = 0};
    for (const CheckpointPiece& piece : logical.pieces) {
      entry.elements += piece.count;
    }
    entries.push_back(entry);
  }
  return entries;
}

void CheckpointReader::require_tensor(const std::string& name, const Shape& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail_data(directory_, ": has no tensor ", name, " ", shape,
              ": it was written by another model or optimizer");
  }
  if (found->second.shape != shape) {
    fail_data(directory_, ": ", name, " is ", found->second.shape, ", the model wants ", shape,
              ": it was written by another model");
  }
}

void CheckpointReader::read(const Slab& slab) const {
  require_tensor(slab.name, slab.slice.whole());
  const std::span<float> out = slab.data.as<float>();
  int64_t missing = slab.data.elements();
  for (const CheckpointPiece& piece : tensors_.at(slab.name).pieces) {
    if (!has_some_of(piece, slab)) {
      continue;
    }
    read_piece(piece, [&](Range range, const float* values) {
      visit_common(piece.slice, range, slab.slice, slab.range(),
                   [&](int64_t in_piece, int64_t in_slab, int64_t count) {
                     std::copy_n(values + (in_piece - range.begin), count,
                                 out.data() + (in_slab - slab.offset));
                     missing -= count;
                   });
    });
  }
  if (missing > 0) {
    fail_data(directory_, ": ", missing, " elements of ", slab.name, " ", slab.slice.whole(),
              " are in none of its files; use another checkpoint");
  }
}

// Calls visit(range of the slice's elements, their values) for the chunks of a piece, in order.
template <class F>
void CheckpointReader::read_piece(const CheckpointPiece& piece, F visit) const {
  const FileReader& file = open(piece.file);
  const Range all = piece.range();
  std::vector<float> values(static_cast<size_t>(std::min(kChunk, all.count())));
  constexpr int64_t kBytes = sizeof(float);
  ContentHash hash;
  for (int64_t begin = all.begin; begin < all.end; begin += kChunk) {
    const Range range = intersection({begin, begin + kChunk}, all);
    file.read(piece.byte + (begin - all.begin) * kBytes, range.count() * kBytes, values.data());
    hash.add(values.data(), range.count() * kBytes);
    visit(range, values.data());
  }
  if (hash.digest().hex() != piece.hash) {
    fail_data(file.path(), ": damaged: ", piece.name,
              " is not what was written; copy it again, or use another checkpoint");
  }
}

}  // namespace tandem

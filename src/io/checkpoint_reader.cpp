#include <algorithm>
#include <filesystem>

#include "src/core/error.h"
#include "src/io/checkpoint.h"

namespace tandem {

CheckpointReader::CheckpointReader(const std::string& directory, Verify verify)
    : directory_(directory), manifest_(read_manifest(directory, verify)) {
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    const H5Reader& reader = open(file);
    for (const std::string group : {"/param", "/stat"}) {
      index_group(file, reader, group);
    }
    if (reader.exists("/optim")) {
      for (const std::string& slot : reader.children("/optim")) {
        index_group(file, reader, "/optim/" + slot);
      }
    }
  }
  sort_pieces();
}

const H5Reader& CheckpointReader::open(size_t file) const {
  if (open_ == nullptr || open_file_ != file) {
    open_ = std::make_unique<H5Reader>(
        (std::filesystem::path(directory_) / manifest_.files[file].name).string());
    open_file_ = file;
  }
  return *open_;
}

void CheckpointReader::index_group(size_t file, const H5Reader& reader, const std::string& group) {
  if (!reader.exists(group)) {
    return;
  }
  for (const std::string& child : reader.children(group)) {
    index_dataset(file, reader, group + "/" + child);
  }
}

void CheckpointReader::index_dataset(size_t file, const H5Reader& reader,
                                     const std::string& dataset) {
  const std::string name = dataset.substr(1, dataset.find('@') - 1);  // without the first '/'
  const std::vector<int64_t> sizes = reader.int_attribute(dataset, "shape");
  const std::vector<int64_t> offset = reader.int_attribute(dataset, "offset");
  const std::vector<int64_t> count = reader.int_attribute(dataset, "count");
  const H5Dataset values = reader.dataset(dataset);
  const bool sizes_fit = sizes.size() <= static_cast<size_t>(Shape::kMaxRank) &&
                         std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= 0; });
  const Shape shape = sizes_fit ? Shape(sizes) : Shape();
  if (!sizes_fit || offset.size() != 1 || count.size() != 1 || values.type != H5Type::kF32 ||
      values.count != count[0] || offset[0] < 0 || offset[0] > shape.elements() - count[0]) {
    fail(ExitCode::kData, str(reader.path(), ": ", dataset,
                              " is not a piece of a tensor as a checkpoint has it; use another "
                              "checkpoint"));
  }
  const auto [found, inserted] = tensors_.try_emplace(name, Logical{shape, {}});
  Logical& logical = found->second;
  if (logical.shape != shape) {
    fail(ExitCode::kData, str(reader.path(), ": ", name, " is ", shape, " here and ", logical.shape,
                              " in another file of ", directory_));
  }
  logical.pieces.push_back({offset[0], count[0], file, values});
}

void CheckpointReader::sort_pieces() {
  for (auto& [name, logical] : tensors_) {
    std::erase_if(logical.pieces, [](const Piece& piece) { return piece.count == 0; });
    std::sort(logical.pieces.begin(), logical.pieces.end(),
              [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    int64_t end = 0;
    for (const Piece& piece : logical.pieces) {
      if (piece.offset < end) {
        fail(ExitCode::kData,
             str(directory_, ": element ", piece.offset, " of ", name, " is there twice"));
      }
      end = piece.offset + piece.count;
    }
  }
}

std::vector<CheckpointReader::Entry> CheckpointReader::tensors() const {
  std::vector<Entry> entries;
  for (const auto& [name, logical] : tensors_) {
    Entry entry{.name = name, .shape = logical.shape, .elements = 0};
    for (const Piece& piece : logical.pieces) {
      entry.elements += piece.count;
    }
    entries.push_back(entry);
  }
  return entries;
}

void CheckpointReader::read(const std::string& name, const Shape& shape, int64_t offset,
                            const Tensor& out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(ExitCode::kData, str(directory_, ": has no tensor ", name, " ", shape,
                              ": it was written by another model or optimizer"));
  }
  const Logical& logical = found->second;
  if (logical.shape != shape) {
    fail(ExitCode::kData, str(directory_, ": ", name, " is ", logical.shape, ", the model wants ",
                              shape, ": it was written by another model"));
  }
  const int64_t last = offset + out.elements();
  require(offset >= 0 && last <= shape.elements(), [&] {
    return str("CheckpointReader: ", name, " ", shape, " from ", offset, " to ", last);
  });
  const std::span<float> values = out.as<float>();
  int64_t at = offset;  // everything before it has been read
  for (const Piece& piece : logical.pieces) {
    const int64_t end = std::min(last, piece.offset + piece.count);
    if (piece.offset > at || at >= last) {
      break;
    }
    if (end > at) {
      open(piece.file)
          .read(piece.dataset, at - piece.offset,
                values.subspan(static_cast<size_t>(at - offset), static_cast<size_t>(end - at)));
      at = end;
    }
  }
  if (at < last) {
    fail(ExitCode::kData, str(directory_, ": element ", at, " of ", name, " ", shape,
                              " is in none of its files; use another checkpoint"));
  }
}

}  // namespace tandem

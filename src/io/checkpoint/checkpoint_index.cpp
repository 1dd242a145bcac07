#include "src/io/checkpoint/checkpoint_index.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/io/hdf5/hdf5.h"

namespace tandem {

namespace {

using Json = nlohmann::json;

Json sizes_of(const Shape& shape) { return Json(shape.sizes()); }

Shape shape_of(const Json& sizes) { return Shape(sizes.get<std::vector<int64_t>>()); }

// Of a tensor whose elements an int64_t can count.
bool is_shape(const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  return sizes.size() <= static_cast<size_t>(Shape::kMaxRank) &&
         std::all_of(sizes.begin(), sizes.end(), [&](int64_t n) {
           return n >= 0 && !__builtin_mul_overflow(elements, n, &elements);
         });
}

// Returns an attribute of a dataset, or `otherwise` if it has none.
std::vector<int64_t> attribute_or(const H5Reader& reader, const std::string& dataset,
                                  const char* name, std::vector<int64_t> otherwise) {
  return reader.has_attribute(dataset, name) ? reader.int_attribute(dataset, name) : otherwise;
}

// The slice that a dataset and its attributes describe; nothing when they describe none.
std::optional<Slice> slice_in(const H5Reader& reader, const H5Dataset& values) {
  const auto whole = attribute_or(reader, values.name, "shape", values.shape);
  const auto start = attribute_or(reader, values.name, "start", std::vector<int64_t>(whole.size()));
  const auto extent = attribute_or(reader, values.name, "extent", whole);
  bool inside = is_shape(whole) && is_shape(start) && is_shape(extent) &&
                start.size() == whole.size() && extent.size() == whole.size();
  for (size_t axis = 0; inside && axis < whole.size(); ++axis) {
    inside = extent[axis] <= whole[axis] && start[axis] <= whole[axis] - extent[axis];
  }
  return inside ? std::optional(Slice(Shape(whole), Shape(start), Shape(extent))) : std::nullopt;
}

CheckpointPiece piece_of(const H5Reader& reader, const std::string& dataset) {
  const H5Dataset values = reader.dataset(dataset);
  const std::optional<Slice> slice = slice_in(reader, values);
  const std::vector<int64_t> offset = attribute_or(reader, dataset, "offset", {0});
  if (!slice || offset.size() != 1 || values.type != H5Type::kF32 || offset[0] < 0 ||
      offset[0] > slice->elements() - values.count) {
    fail_data(reader.path(), ": ", dataset,
              " is not a piece of a tensor as a checkpoint has it; use another checkpoint");
  }
  return {.name = dataset.substr(1, dataset.find('@') - 1),  // without the first '/'
          .slice = *slice,
          .offset = offset[0],
          .count = values.count,
          .byte = values.offset,
          .hash = reader.string_attribute(dataset, "xxh3_128")};
}

}  // namespace

std::string CheckpointIndex::text() const {
  const auto json_of = [](const CheckpointPiece& piece) -> Json {
    return {piece.name,
            sizes_of(piece.slice.whole()),
            sizes_of(piece.slice.start()),
            sizes_of(piece.slice.extent()),
            piece.offset,
            piece.count,
            piece.byte,
            piece.hash,
            piece.file};
  };
  return Json(mapped(pieces, json_of)).dump();
}

void CheckpointIndex::add(std::string_view text) {
  for (const Json& piece : Json::parse(text)) {
    pieces.push_back({.name = piece[0],
                      .slice = Slice(shape_of(piece[1]), shape_of(piece[2]), shape_of(piece[3])),
                      .offset = piece[4],
                      .count = piece[5],
                      .byte = piece[6],
                      .hash = piece[7],
                      .file = piece[8]});
  }
}

std::vector<CheckpointPiece> pieces_in(const std::string& path) {
  const H5Reader reader(path);
  std::vector<std::string> groups = {"/param", "/stat"};
  if (reader.exists("/optim")) {
    for (const std::string& slot : reader.children("/optim")) {
      groups.push_back("/optim/" + slot);
    }
  }
  std::vector<CheckpointPiece> pieces;
  for (const std::string& group : groups) {
    if (reader.exists(group)) {
      for (const std::string& child : reader.children(group)) {
        pieces.push_back(piece_of(reader, group + "/" + child));
      }
    }
  }
  return pieces;
}

std::vector<Range> bytes_of(const std::vector<CheckpointPiece>& pieces) {
  std::vector<Range> all;
  for (const CheckpointPiece& piece : pieces) {
    if (piece.count > 0) {
      all.push_back({piece.byte, piece.byte + piece.count * static_cast<int64_t>(sizeof(float))});
    }
  }
  std::ranges::sort(all, {}, &Range::begin);
  std::vector<Range> merged;
  for (const Range& piece : all) {
    if (!merged.empty() && merged.back().end == piece.begin) {
      merged.back().end = piece.end;
    } else {
      merged.push_back(piece);
    }
  }
  return merged;
}

CheckpointIndex index_files(const std::string& directory, const Manifest& manifest, size_t share,
                            size_t shares) {
  CheckpointIndex index;
  for (size_t i = share; i < manifest.files.size(); i += shares) {
    const std::string path = (std::filesystem::path(directory) / manifest.files[i].name).string();
    const FileEntry& file = manifest.files[i];
    if (describe_file(path, file.pieces) != file) {
      fail_data(path,
                ": damaged: its content is not what was written; copy it again, or use another "
                "checkpoint");
    }
    for (CheckpointPiece& piece : pieces_in(path)) {
      piece.file = i;
      index.pieces.push_back(std::move(piece));
    }
  }
  return index;
}

}  // namespace tandem

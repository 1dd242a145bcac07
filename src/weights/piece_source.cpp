#include "src/weights/piece_source.h"

#include <utility>

namespace tandem {

namespace {

constexpr int kPiecesByName = 3;  // the first format with them

// "param/", "optim/m/" or "stat/". Names of parameters have no '/'.
size_t prefix_of(std::string_view name) { return name.rfind('/') + 1; }

}  // namespace

PieceSource::PieceSource(CheckpointReader reader, Model& model) : reader_(std::move(reader)) {
  if (reader_.manifest().format_version >= kPiecesByName) {
    return;
  }
  for (const Parameter* parameter : parameters_of(model)) {
    int64_t rows = 0;
    for (const Piece& piece : parameter->pieces) {
      rows += piece.slice.whole()[0];
    }
    int64_t first = 0;
    for (const Piece& piece : parameter->pieces) {
      const Shape& whole = piece.slice.whole();
      rows_[piece.name] = {parameter->name, whole.with(0, rows), first};
      first += whole[0];
    }
  }
}

const PieceSource::Rows* PieceSource::rows_of(const std::string& name) const {
  const auto found = rows_.find(std::string_view(name).substr(prefix_of(name)));
  return found == rows_.end() ? nullptr : &found->second;
}

void PieceSource::require_tensor(const std::string& name, const Shape& shape) const {
  const Rows* rows = rows_of(name);
  reader_.require_tensor(rows ? name.substr(0, prefix_of(name)) + rows->stack : name,
                         rows ? rows->whole : shape);
}

void PieceSource::read(const Slab& slab) const {
  const Rows* rows = rows_of(slab.name);
  if (!rows) {
    return reader_.read(slab);
  }
  const Slice& piece = slab.slice;
  reader_.read(
      {slab.name.substr(0, prefix_of(slab.name)) + rows->stack,
       Slice(rows->whole, piece.start().with(0, rows->first + piece.start()[0]), piece.extent()),
       slab.offset, slab.data});
}

}  // namespace tandem

#include "src/weights/hugging_face/names.h"

namespace tandem {

std::string foreign_name(std::string ours, const ForeignNames& names) {
  for (const auto& [word, theirs] : names.words) {
    const size_t at = ours.find(word);
    if (at != std::string::npos) {
      ours.replace(at, word.size(), theirs);
    }
  }
  return ours;
}

std::vector<ForeignTensor> foreign_tensors(Model& model, const ForeignNames& names) {
  std::vector<ForeignTensor> tensors;
  for (const Parameter* parameter : parameters_of(model)) {
    const std::vector<Piece> pieces = pieces_of(*parameter);
    if (names.is_conv1d) {
      const Shape& shape = parameter->shape;
      const bool transposed = shape.rank() == 2 && parameter->name.starts_with("blocks.");
      tensors.push_back({.name = foreign_name(parameter->name, names),
                         .shape = transposed ? Shape{shape[1], shape[0]} : shape,
                         .transposed = transposed,
                         .pieces = pieces});
      continue;
    }
    for (const Piece& piece : pieces) {
      tensors.push_back({.name = foreign_name(piece.name, names),
                         .shape = piece.slice.whole(),
                         .pieces = {piece}});
    }
  }
  return tensors;
}

}  // namespace tandem

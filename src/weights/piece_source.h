// A checkpoint of a run, as a model reads it: its tensors are the pieces of the model's parameters.
#pragma once

#include <map>
#include <string>

#include "layers/models/model.h"
#include "src/io/checkpoint/checkpoint_reader.h"

namespace tandem {

// Checkpoints of format 2 hold whole parameters, "param/blocks.0.attn.qkv.weight". Pieces are cut
// out of these by rows. Other tensors are passed on.
class PieceSource final : public TensorSource {
 public:
  PieceSource(CheckpointReader reader, Model& model);

  const CheckpointReader& reader() const { return reader_; }

  void require_tensor(const std::string& name, const Shape& shape) const override;
  void read(const Slab& slab) const override;

 private:
  // The rows of a stored tensor that are one piece.
  struct Rows {
    std::string stack;
    Shape whole;
    int64_t first = 0;
  };
  const Rows* rows_of(const std::string& name) const;

  CheckpointReader reader_;
  std::map<std::string, Rows, std::less<>> rows_;  // by piece; empty from format 3 on
};

}  // namespace tandem

// The tensors of a model in the files of another program: one list, which import and export read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "layers/models/model.h"
#include "src/settings/model_kind.h"

namespace tandem {

// A tensor of the other program: pieces of ours, one below the other.
struct ForeignTensor {
  std::string name{};       // "transformer.h.0.attn.c_attn.weight", "model.norm.weight"
  Shape shape{};            // as in its file
  bool transposed = false;  // [columns, rows] of our pieces
  std::vector<Piece> pieces{};
};

// All tensors, in forward order; a tied head's weight is none.
std::vector<ForeignTensor> foreign_tensors(Model& model, const ForeignNames& names);

// Their name of a piece or parameter of ours.
std::string foreign_name(std::string ours, const ForeignNames& names);

// GPT-2's names may stand without this prefix, as in the oldest models of the Hub.
inline constexpr std::string_view kGpt2Prefix = "transformer.";

// The head's weight. Some files hold a copy of it though it is tied.
inline constexpr std::string_view kHeadName = "lm_head.weight";

}  // namespace tandem

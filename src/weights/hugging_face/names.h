// Which tensors of a Hugging Face model make up each parameter of ours: one table, which import and
// export read.
//
// GPT2LMHeadModel keeps the matrices of attention and feed-forward transposed (Conv1D, [inputs,
// outputs]). LlamaForCausalLM keeps queries, keys and values, and both inputs of SwiGLU, as
// matrices of their own; ours are stacked by rows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "layers/models/transformer.h"

namespace tandem {

// A tensor of a Hugging Face model, and the rows of our parameter that it is.
struct HuggingFaceTensor {
  std::string name{};       // "transformer.h.0.attn.c_attn.weight", "model.norm.weight"
  Shape shape{};            // as in its file
  bool transposed = false;  // [columns, rows] of our matrix
};

// Our parameter of shape [rows, ...]: the rows of `parts`, one below the other.
struct HuggingFaceParameter {
  std::string name{};  // "blocks.0.attn.qkv.weight"
  Shape shape{};
  std::vector<HuggingFaceTensor> parts{};
};

// All parameters of a model, in forward order; a tied head's weight is none. `config` is
// resolved().
std::vector<HuggingFaceParameter> hugging_face_parameters(const TransformerConfig& config);

// GPT-2's names may stand without this prefix, as in the oldest models of the Hub.
inline constexpr std::string_view kGpt2Prefix = "transformer.";

// True for a tensor that is no parameter: causal masks of GPT-2, rotary frequencies of Llama, and
// the copy that some files hold of a tied head.
bool is_no_hugging_face_parameter(std::string_view name, const TransformerConfig& config);

}  // namespace tandem

// A transformer small enough for f64 checks, and tokens for it.
#pragma once

#include <vector>

#include "layers/models/transformer.h"

namespace tandem::testing {

inline TransformerConfig small(bool llama) {
  return {.style = llama ? kLlama : kGpt2,
          .vocab = 11,
          .context = 6,
          .layers = 2,
          .heads = 4,
          .kv_heads = llama ? 2 : 0,
          .width = 8,
          .ffn_width = llama ? 12 : 0,
          .dropout = 0.2,
          .tie_embeddings = !llama};
}

inline std::vector<int32_t> some_tokens(int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>((i * i + 3 * i) % 11);
  }
  return tokens;
}

}  // namespace tandem::testing

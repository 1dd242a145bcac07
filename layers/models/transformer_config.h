// The sizes of a gpt or llama.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/attention/head_layout.h"
#include "layers/rope/rope_frequencies.h"

namespace tandem {

struct TransformerConfig {
  bool llama = false;     // false: GPT-2 (LayerNorm, biases, learned positions, GELU); true: Llama
                          // (RMSNorm, no biases, RoPE, SwiGLU)
  int64_t vocab = 0;      // logits, and rows of the token embedding
  int64_t context = 0;    // longest sequence
  int64_t positions = 0;  // rows of GPT-2's learned positions; 0: as many as `context`
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;   // 0: as many as `heads`
  int64_t width = 0;      // of the residual stream, C
  int64_t ffn_width = 0;  // 0: 4 C, or for Llama 8 C / 3 rounded up to a multiple of 32
  double dropout = 0;     // after the embedding and both branches; not on attention probabilities
  bool tie_embeddings = true;  // the head's weight is the token embedding
  double norm_epsilon = 1e-5;
  RopeFrequencies rope{};  // of Llama

  // Messages about sizes that do not fit together, with the settings' names; otherwise empty.
  std::vector<std::string> problems() const;
  HeadLayout head_layout() const { return {heads, kv_heads, width / heads}; }
};

// `config` with a number in place of each 0 that stands for a default. Throws Error(kConfig) if the
// sizes do not fit together.
TransformerConfig resolved(TransformerConfig config);

}  // namespace tandem

// The sizes of a gpt or llama.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/attention/head_layout.h"
#include "layers/lora/lora.h"
#include "layers/rope/rope_frequencies.h"
#include "src/core/slice.h"

namespace tandem {

// What a transformer's blocks are made of, and how its parameters are called.
struct TransformerStyle {
  const char *norm_1, *norm_2, *norm_f, *up, *down;
  bool is_biased;  // linear layers have biases, norms are LayerNorms; otherwise RMSNorms, no biases
  bool is_rotary;  // positions turn queries and keys; otherwise they are learned and added
  bool is_gated;   // SwiGLU; otherwise GELU
};
inline constexpr TransformerStyle kGpt2{"ln_1",     "ln_2", "ln_f", "mlp.fc",
                                        "mlp.proj", true,   false,  false};
inline constexpr TransformerStyle kLlama{"norm_1",   "norm_2", "norm_f", "mlp.gate_up",
                                         "mlp.down", false,    true,     true};

struct TransformerConfig {
  TransformerStyle style = kGpt2;
  int64_t vocab = 0;      // logits, and rows of the token embedding
  int64_t context = 0;    // longest sequence
  int64_t positions = 0;  // rows of learned positions; 0: as many as `context`
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;    // 0: as many as `heads`
  int64_t head_width = 0;  // of one head, D; 0: width / heads
  int64_t width = 0;       // of the residual stream, C
  int64_t ffn_width = 0;   // 0: 4 C, or gated 8 C / 3 rounded up to a multiple of 32
  double dropout = 0;      // after the embedding and both branches; not on attention probabilities
  bool tie_embeddings = true;  // the head's weight is the token embedding
  double norm_epsilon = 1e-5;
  RopeFrequencies rope{};  // of rotary positions
  // Biases in a style without them: of queries, keys and values; of these and the projection.
  bool qkv_bias = false;
  bool attention_bias = false;
  bool qk_norm = false;        // heads of queries and keys are normalised before they are rotated
  int64_t sliding_window = 0;  // keys that a query sees at most, its own included; 0: all
  // What this rank has of the heads, of the feed-forward network and of the vocabulary, among the
  // ranks of context.tensor.
  Cut cut{};
  LoraOptions lora{};  // targets are of adaptable(); not with a cut

  // Messages about sizes that do not fit together, with the settings' names; otherwise empty.
  std::vector<std::string> problems() const;
  // Names a setting that so many ranks cannot divide evenly; empty: they can cut the model.
  std::string why_not_cut(int64_t ranks) const;
  // The layers of a block that can have adapters, in forward order.
  std::vector<std::string> adaptable() const;
  HeadLayout head_layout() const {
    return {heads, kv_heads, head_width ? head_width : width / heads};
  }
  HeadLayout heads_here() const {
    return {heads / cut.count, kv_heads / cut.count, head_layout().width};
  }
  int64_t heads_width() const { return heads * head_layout().width; }  // of all query heads
  bool has_qkv_bias() const { return style.is_biased || qkv_bias || attention_bias; }
  bool has_projection_bias() const { return style.is_biased || attention_bias; }
};

// `config` with a number in place of each 0 that stands for a default. Throws Error(kConfig) if the
// sizes do not fit together.
TransformerConfig resolved(TransformerConfig config);

}  // namespace tandem

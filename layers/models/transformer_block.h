// One layer of a decoder-only transformer: causal attention, then a feed-forward network, each
// added to the residual stream after a normalisation.
//
// The addition at the end of a block and the norm at the beginning of the next are one pass over
// memory: a block hands on the residual stream and its last branch, and the next one adds them.
#pragma once

#include <memory>

#include "layers/attention/attention.h"
#include "layers/norm/norm.h"

namespace tandem {

struct TransformerConfig {
  bool llama = false;  // false: GPT-2 (LayerNorm, biases, learned positions, GELU); true: Llama
                       // (RMSNorm, no biases, RoPE, SwiGLU)
  int64_t vocab = 0;
  int64_t context = 0;  // longest sequence
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;   // 0: heads
  int64_t width = 0;      // of the residual stream, C
  int64_t ffn_width = 0;  // 0: 4 C, or for Llama 8 C / 3 rounded up to a multiple of 32
  double dropout = 0;     // of the embedding and of both branches; not of attention probabilities
  bool tie_embeddings = true;  // the head's weight is the token embedding

  // What of width and heads does not fit together, by the settings' names; empty when all does.
  std::vector<std::string> problems() const;
  HeadLayout head_layout() const { return {heads, kv_heads, width / heads}; }
};

class TransformerBlock {
 public:
  virtual ~TransformerBlock() = default;
  // Tensors are [B, T, C]. With a cache B is 1, and attention goes from these positions, the next
  // ones of the sequence, to all before them; the cache takes them in.
  virtual Flow operator()(Context& context, Flow x, KeyValueCache* cache) = 0;
  virtual std::vector<Parameter*> parameters() = 0;
};

// The norm of the residual stream x[0]. The branch x[1] that is still to be added to it, if any, is
// added first: then x is the sum alone.
template <class Norm>
Variable normalized(Context& context, Flow& x, Norm& norm) {
  if (x.size() == 1) {
    return norm(context, x[0]);
  }
  Normalized both = norm.add(context, x[0], std::move(x[1]));
  x = {both.sum};
  return both.y;
}

// Block `index` of a resolved configuration; parameters are named blocks.`index`.*. Weights start
// normal with deviation 0.02, those that feed the residual stream with 0.02 / sqrt(2 layers)
// (Radford et al. 2019).
std::unique_ptr<TransformerBlock> gpt_block(const TransformerConfig& config, int64_t index);
std::unique_ptr<TransformerBlock> llama_block(const TransformerConfig& config, int64_t index);

}  // namespace tandem

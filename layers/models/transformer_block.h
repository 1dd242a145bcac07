// One layer of a decoder-only transformer: causal attention, then a feed-forward network. Each
// reads a normalised copy of the residual stream and adds its result to the stream.
//
// The addition at the end of a block and the norm at the beginning of the next block are fused into
// one pass over memory. So a block returns the residual stream and its last branch, and the next
// block adds them.
#pragma once

#include "layers/attention/attention.h"
#include "layers/linear/linear.h"
#include "layers/norm/norm.h"
#include "layers/rope/rope.h"
#include "src/autograd/block.h"

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
  double norm_epsilon = kNormEpsilon;
  RopeFrequencies rope{};  // of Llama

  // Messages about sizes that do not fit together, with the settings' names; otherwise empty.
  std::vector<std::string> problems() const;
  HeadLayout head_layout() const { return {heads, kv_heads, width / heads}; }
};

class TransformerBlock {
 public:
  // Block `index` of a configuration with resolved defaults. Parameters are named blocks.`index`.*.
  // Weights are initialized from a normal distribution with deviation 0.02, or 0.02 / sqrt(2
  // layers) if they write to the residual stream (Radford et al. 2019).
  TransformerBlock(const TransformerConfig& config, int64_t index);
  // Tensors are [B, T, C]. With a cache, x holds the next positions of its B sequences. They attend
  // to themselves and to all earlier positions, and are appended to the cache.
  Flow operator()(Context& context, Flow x, KeyValueCache* cache);
  std::vector<Parameter*> parameters();

 private:
  Variable attend(Context& context, Variable qkv, KeyValueCache* cache) const;
  Variable feed_forward(Context& context, const Variable& x);

  TransformerConfig config_;
  int64_t index_;
  Norm norm_1_;
  Linear qkv_, proj_;
  Norm norm_2_;
  Linear up_, down_;  // up_ of Llama gives the gate, too
};

// The norm of the residual stream x[0]. If x[1] exists, it is a branch that must be added first;
// afterwards x holds only the sum.
Variable normalized(Context& context, Flow& x, Norm& norm);

}  // namespace tandem

// Decoder-only transformers: GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023,
// arXiv:2302.13971).
//
// Parameters of GPT-2: wte [V, C], wpe [positions, C], blocks.N.{ln_1, attn.qkv, attn.proj, ln_2,
// mlp.fc, mlp.proj}, ln_f, and head.weight [V, C] if embeddings are not tied. Of Llama: wte,
// blocks.N.{norm_1, attn.qkv, attn.proj, norm_2, mlp.gate_up, mlp.down}, norm_f, head.weight.
// Dropout follows the embedding and both branches of a block, as in GPT-2, but attention
// probabilities have no dropout.
//
// Tokens i32 [B, T], T <= context, give logits [B * T, columns], as classifier.h says. Between
// blocks there are rows of [B * T, C], those of context.rows: all, or this rank's. The blocks are
// the embedding, one for each layer, and the head with the final norm. A tied weight is listed with
// the embedding.
#pragma once

#include <optional>
#include <span>

#include "layers/models/classifier.h"
#include "layers/models/transformer_block.h"

namespace tandem {

class Transformer final : public Classifier {
 public:
  // Throws Error(kConfig) if the sizes do not fit together.
  explicit Transformer(const TransformerConfig& config);

  // Sets context.rows. Throws Error(kInternal) if the ranks of context.tensor do not divide B * T.
  Variable logits(Context& context, const Tensor& tokens) override;

  // T ProductFlops. A tied embedding counts once, as the head; looking up tokens is no product. A
  // layer's attention adds 12 * heads * D * seen_pairs, a third of it where nothing up to there is
  // trained. Chowdhery et al. 2022, appendix B, count the full square of scores; the causal mask
  // leaves half of it, and a window less.
  double flops_per_sample() const override;

  std::unique_ptr<Decoder> decoder(const Context& context, int64_t slots, int64_t window) override;
  // The blocks for generating. Tokens [rows, 1] continue the sequences in the caches, and give the
  // logits [asked rows, columns]. The blocks refer to the model and to `cached`. Null: the blocks
  // for whole sequences.
  std::vector<Block> blocks_over(CachedRows* cached);

  const TransformerConfig& config() const { return config_; }  // with defaults resolved
  DType dtype() const { return wte_.value.dtype(); }           // of parameters and activations

 private:
  Variable embed(Context& context, const Tensor& tokens);
  // x: rows of this rank, normalised. Logits of all rows, and of those that are asked for.
  Variable head(Context& context, const Variable& x);
  Variable asked_logits(Context& context, const Variable& x, std::span<const int64_t> asked);

  TransformerConfig config_;
  Parameter wte_;
  std::optional<Parameter> wpe_;
  std::vector<TransformerBlock> layers_;
  Norm norm_f_;
  std::optional<Parameter> head_weight_;
};

}  // namespace tandem

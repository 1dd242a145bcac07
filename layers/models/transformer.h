// Decoder-only transformers: GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023,
// arXiv:2302.13971).
//
// Parameters, GPT-2: wte [V, C], wpe [context, C], blocks.N.{ln_1, attn.qkv, attn.proj, ln_2,
// mlp.fc, mlp.proj}, ln_f, and head.weight [V, C] when not tied. Llama: wte, blocks.N.{norm_1,
// attn.qkv, attn.proj, norm_2, mlp.gate_up, mlp.down}, norm_f, head.weight. Dropout stands where
// GPT-2 has it, after the embedding and after both branches of a block, but attention
// probabilities are not dropped.
//
// Tokens i32 [B, T], T <= context, give logits [B * T, vocab]. Blocks: the embedding, one for each
// layer, the head (with the final norm). A tied weight belongs to the embedding.
#pragma once

#include <optional>
#include <span>

#include "layers/models/classifier.h"
#include "layers/models/transformer_block.h"

namespace tandem {

class Transformer final : public Classifier {
 public:
  // Throws Error(kConfig) for sizes that do not fit together.
  explicit Transformer(const TransformerConfig& config);

  // 6 T for each parameter of a matrix product (a tied embedding counts once, as the head; lookups
  // are no products), and 12 * layers * width * T^2 / 2 for attention: Chowdhery et al. 2022,
  // appendix B count the full square of scores, of which the causal mask leaves half.
  double flops_per_sample() const override;

  std::unique_ptr<Decoder> decoder(const Context& context) override;
  // The blocks for one sequence: tokens [1, T] continue the positions in `caches`, one for each
  // layer, and give the logits [1, vocab] of what follows the last. Refer to the model and caches.
  std::vector<Block> blocks_over(std::span<KeyValueCache> caches);

  const TransformerConfig& config() const { return config_; }  // with defaults filled in
  DType dtype() const { return wte_.value.dtype(); }           // of parameters and activations

 private:
  Variable embed(Context& context, const Tensor& tokens, int64_t first_position);
  // [..., C] -> [rows, width], with the classes before columns that pad the head's weight, if any.
  Variable head(Context& context, Flow x);

  TransformerConfig config_;
  Parameter wte_;
  std::optional<Parameter> wpe_;
  std::vector<std::unique_ptr<TransformerBlock>> layers_;
  std::optional<LayerNorm> ln_f_;
  std::optional<RmsNorm> norm_f_;
  std::optional<Parameter> head_weight_;
};

}  // namespace tandem

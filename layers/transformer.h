// Decoder-only transformers: GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023,
// arXiv:2302.13971).
//
// Parameters, GPT-2: wte [V, C], wpe [context, C], blocks.N.{ln_1, attn.qkv, attn.proj, ln_2,
// mlp.fc, mlp.proj}, ln_f, and head.weight [V, C] when not tied. Llama: wte, blocks.N.{norm_1,
// attn.qkv, attn.proj, norm_2, mlp.gate_up, mlp.down}, norm_f, head.weight. Dropout stands where
// GPT-2 has it, behind the embedding and behind both branches of a block, but attention
// probabilities are not dropped.
#pragma once

#include <optional>
#include <span>

#include "layers/norm.h"
#include "layers/transformer_block.h"

namespace tandem {

class Transformer final : public Model {
 public:
  // Throws Error(kConfig) for sizes that do not fit together.
  explicit Transformer(const TransformerConfig& config);

  // Blocks: the embedding, one for each layer, the head (with the final norm). A tied weight
  // belongs to the embedding.
  std::vector<BlockParameters> blocks() override;
  // tokens i32 [B, T], T <= context; returns logits [B * T, vocab].
  Variable forward(Context& context, Gate& gate, const Tensor& tokens) override;
  // 6 T for each parameter of a matrix product (a tied embedding counts once, as the head; lookups
  // are no products), and 12 * layers * width * T^2 / 2 for attention: Chowdhery et al. 2022,
  // appendix B count the full square of scores, of which the causal mask leaves half.
  double flops_per_sample() const override;

  // Logits [vocab] behind the last of tokens i32 [1, T], which continue the positions in `caches`
  // (one for each layer). Remembers nothing for backward.
  Tensor decode(Context& context, Gate& gate, const Tensor& tokens,
                std::span<KeyValueCache> caches);

  const TransformerConfig& config() const { return config_; }  // with defaults filled in
  DType dtype() const { return wte_.value.dtype(); }           // of parameters and activations

 private:
  Variable embed(Context& context, Gate& gate, const Tensor& tokens, int64_t first_position);
  Variable layer(Context& context, Gate& gate, int64_t index, const Variable& x,
                 KeyValueCache* cache);
  // [..., C] -> [rows, width], with the classes before columns that pad the head's weight, if any.
  Variable head(Context& context, Gate& gate, const Variable& x);

  TransformerConfig config_;
  Parameter wte_;
  std::optional<Parameter> wpe_;
  std::vector<std::unique_ptr<TransformerBlock>> blocks_;
  std::optional<LayerNorm> ln_f_;
  std::optional<RmsNorm> norm_f_;
  std::optional<Parameter> head_weight_;
};

}  // namespace tandem

#include "layers/models/transformer_block.h"

#include <cmath>

#include "layers/activation/activation.h"
#include "layers/add/add.h"
#include "layers/dropout/dropout.h"

namespace tandem {

namespace {

Initializer init_weight() { return Initializer::normal(0.02); }

Initializer init_residual(const TransformerConfig& config) {
  return Initializer::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

// Ends a block. A recomputed block does the addition, so that the tape keeps one tensor as the next
// block's input, not two.
Flow end_of_block(Context& context, const Variable& residual, Variable branch) {
  if (context.recompute) {
    return {add(context, residual, std::move(branch))};
  }
  return {residual, std::move(branch)};
}

}  // namespace

Variable normalized(Context& context, Flow& x, Norm& norm) {
  if (x.size() == 1) {
    return norm(context, x[0]);
  }
  Normalized both = norm.add(context, x[0], std::move(x[1]));
  x = {both.sum};
  return both.y;
}

TransformerBlock::TransformerBlock(const TransformerConfig& config, int64_t index)
    : config_(config),
      index_(index),
      norm_1_(norm(config.style.norm_1)),
      qkv_(qkv(config.head_layout())),
      proj_(linear("attn.proj", config.width, config.width, init_residual(config))),
      norm_2_(norm(config.style.norm_2)),
      up_(config.style.is_gated
              ? stacked(config.style.up,
                        {{"mlp.gate", config.ffn_width}, {"mlp.up", config.ffn_width}})
              : linear(config.style.up, config.width, config.ffn_width, init_weight())),
      down_(linear(config.style.down, config.ffn_width, config.width, init_residual(config))) {}

Norm TransformerBlock::norm(const char* name) const {
  return {str("blocks.", index_, ".", name), config_.width, config_.norm_epsilon,
          config_.style.is_biased};
}

Linear TransformerBlock::linear(const char* name, int64_t in, int64_t out, Initializer init) const {
  return {str("blocks.", index_, ".", name), in, out, init, config_.style.is_biased};
}

// Layers that read the residual stream together.
Linear TransformerBlock::stacked(const char* name, std::vector<Linear::Outputs> layers) const {
  const std::string block = str("blocks.", index_, ".");
  for (Linear::Outputs& layer : layers) {
    layer.name = block + layer.name;
  }
  return {block + name, config_.width, layers, init_weight(), config_.style.is_biased};
}

Linear TransformerBlock::qkv(const HeadLayout& heads) const {
  const int64_t kv_width = heads.kv_heads * heads.width;
  return stacked(
      "attn.qkv",
      {{"attn.q", heads.heads * heads.width}, {"attn.k", kv_width}, {"attn.v", kv_width}});
}

Variable TransformerBlock::attend(Context& context, Variable qkv, KeyValueCache* cache) const {
  const HeadLayout heads = config_.head_layout();
  if (config_.style.is_rotary) {
    qkv = rope(context, std::move(qkv), heads, cache ? cache->length : 0, config_.rope);
  }
  return cache ? attention_cached(context, qkv, heads, *cache) : attention(context, qkv, heads);
}

Variable TransformerBlock::feed_forward(Context& context, const Variable& x) {
  if (config_.style.is_gated) {
    const Variable hidden = swiglu(context, up_(context, x));
    return down_(context, hidden);
  }
  return down_(context, up_.gelu(context, x));
}

Flow TransformerBlock::operator()(Context& context, Flow x, KeyValueCache* cache) {
  const auto site = static_cast<uint32_t>(1 + 2 * index_);  // of dropout: 0 is the embedding
  Variable qkv = qkv_(context, normalized(context, x, norm_1_));
  const Variable y = attend(context, std::move(qkv), cache);
  const Normalized middle =
      norm_2_.add(context, x[0], dropout(context, proj_(context, y), config_.dropout, site));
  return end_of_block(context, middle.sum,
                      dropout(context, feed_forward(context, middle.y), config_.dropout, site + 1));
}

std::vector<Parameter*> TransformerBlock::parameters() {
  return parameters_in(norm_1_, qkv_, proj_, norm_2_, up_, down_);
}

}  // namespace tandem

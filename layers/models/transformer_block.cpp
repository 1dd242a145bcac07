#include "layers/models/transformer_block.h"

#include <cmath>

#include "layers/activation/activation.h"
#include "layers/add/add.h"
#include "layers/dropout/dropout.h"
#include "layers/linear/linear.h"

namespace tandem {

namespace {

std::string block_name(int64_t index) { return str("blocks.", index, "."); }

Initializer init_weight() { return Initializer::normal(0.02); }

Initializer init_residual(const TransformerConfig& config) {
  return Initializer::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)));
}

// Dropout sites: 0 is the embedding; then each block has two.
uint32_t attention_site(int64_t index) { return static_cast<uint32_t>(1 + 2 * index); }
uint32_t ffn_site(int64_t index) { return attention_site(index) + 1; }

Variable attend(Context& context, const Variable& qkv, const HeadLayout& heads,
                KeyValueCache* cache) {
  return cache ? attention_cached(context, qkv, heads, *cache) : attention(context, qkv, heads);
}

// Ends a block. A recomputed block does the addition, so that the tape keeps one tensor as the next
// block's input, not two.
Flow hand_on(Context& context, const Variable& residual, Variable branch) {
  if (context.recompute) {
    return {add(context, residual, std::move(branch))};
  }
  return {residual, std::move(branch)};
}

class GptBlock final : public TransformerBlock {
 public:
  GptBlock(const TransformerConfig& config, int64_t index)
      : heads_(config.head_layout()),
        dropout_(config.dropout),
        index_(index),
        ln_1_(block_name(index) + "ln_1", config.width, config.norm_epsilon),
        qkv_(block_name(index) + "attn.qkv", config.width, heads_.row(), init_weight()),
        attn_proj_(block_name(index) + "attn.proj", config.width, config.width,
                   init_residual(config)),
        ln_2_(block_name(index) + "ln_2", config.width, config.norm_epsilon),
        fc_(block_name(index) + "mlp.fc", config.width, config.ffn_width, init_weight()),
        mlp_proj_(block_name(index) + "mlp.proj", config.ffn_width, config.width,
                  init_residual(config)) {}

  Flow operator()(Context& context, Flow x, KeyValueCache* cache) override {
    const Variable y = attend(context, qkv_(context, normalized(context, x, ln_1_)), heads_, cache);
    const Normalized middle = ln_2_.add(
        context, x[0], dropout(context, attn_proj_(context, y), dropout_, attention_site(index_)));
    const GeluVariable hidden = fc_.gelu(context, middle.y);
    return hand_on(context, middle.sum,
                   dropout(context, mlp_proj_(context, hidden), dropout_, ffn_site(index_)));
  }

  std::vector<Parameter*> parameters() override {
    return parameters_in(ln_1_, qkv_, attn_proj_, ln_2_, fc_, mlp_proj_);
  }

 private:
  HeadLayout heads_;
  double dropout_;
  int64_t index_;
  Norm ln_1_;
  Linear qkv_, attn_proj_;
  Norm ln_2_;
  Linear fc_, mlp_proj_;
};

class LlamaBlock final : public TransformerBlock {
 public:
  LlamaBlock(const TransformerConfig& config, int64_t index)
      : heads_(config.head_layout()),
        dropout_(config.dropout),
        index_(index),
        frequencies_(config.rope),
        norm_1_(block_name(index) + "norm_1", config.width, config.norm_epsilon, false),
        qkv_(block_name(index) + "attn.qkv", config.width, heads_.row(), init_weight(), false),
        proj_(block_name(index) + "attn.proj", config.width, config.width, init_residual(config),
              false),
        norm_2_(block_name(index) + "norm_2", config.width, config.norm_epsilon, false),
        gate_up_(block_name(index) + "mlp.gate_up", config.width, 2 * config.ffn_width,
                 init_weight(), false),
        down_(block_name(index) + "mlp.down", config.ffn_width, config.width, init_residual(config),
              false) {}

  Flow operator()(Context& context, Flow x, KeyValueCache* cache) override {
    const Variable qkv = rope(context, qkv_(context, normalized(context, x, norm_1_)), heads_,
                              cache ? cache->length : 0, frequencies_);
    const Variable y = attend(context, qkv, heads_, cache);
    const Normalized middle = norm_2_.add(
        context, x[0], dropout(context, proj_(context, y), dropout_, attention_site(index_)));
    const Variable hidden = swiglu(context, gate_up_(context, middle.y));
    return hand_on(context, middle.sum,
                   dropout(context, down_(context, hidden), dropout_, ffn_site(index_)));
  }

  std::vector<Parameter*> parameters() override {
    return parameters_in(norm_1_, qkv_, proj_, norm_2_, gate_up_, down_);
  }

 private:
  HeadLayout heads_;
  double dropout_;
  int64_t index_;
  RopeFrequencies frequencies_;
  Norm norm_1_;
  Linear qkv_, proj_;
  Norm norm_2_;
  Linear gate_up_, down_;
};

}  // namespace

std::vector<std::string> TransformerConfig::problems() const {
  std::vector<std::string> problems;
  if (width % heads != 0) {
    problems.push_back(str("model.width = ", width, " is not divisible by model.heads = ", heads));
  } else if (llama && width / heads % 2 != 0) {
    problems.push_back(str("model.width / model.heads = ", width / heads,
                           " must be even: rotary positions turn pairs"));
  }
  if (kv_heads > 0 && heads % kv_heads != 0) {
    problems.push_back(
        str("model.heads = ", heads, " is not divisible by model.kv_heads = ", kv_heads));
  }
  if (positions > 0 && positions < context) {
    problems.push_back(str("model.positions = ", positions, " is below model.context = ", context));
  }
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    problems.push_back(str("model.rope_high_freq_factor = ", rope.high_freq_factor,
                           " must be above model.rope_low_freq_factor = ", rope.low_freq_factor));
  }
  return problems;
}

Variable normalized(Context& context, Flow& x, Norm& norm) {
  if (x.size() == 1) {
    return norm(context, x[0]);
  }
  Normalized both = norm.add(context, x[0], std::move(x[1]));
  x = {both.sum};
  return both.y;
}

std::unique_ptr<TransformerBlock> gpt_block(const TransformerConfig& config, int64_t index) {
  return std::make_unique<GptBlock>(config, index);
}

std::unique_ptr<TransformerBlock> llama_block(const TransformerConfig& config, int64_t index) {
  return std::make_unique<LlamaBlock>(config, index);
}

}  // namespace tandem

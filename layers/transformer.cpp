#include "layers/transformer.h"

#include <algorithm>

#include "layers/dropout.h"
#include "layers/embedding.h"
#include "layers/linear.h"

namespace tandem {

namespace {

constexpr uint32_t kEmbeddingSite = 0;

void require_config(bool ok, const std::string& message) {
  if (!ok) {
    fail(ExitCode::kConfig, message);
  }
}

TransformerConfig resolve(TransformerConfig config) {
  require_config(config.vocab > 0 && config.context > 0 && config.layers > 0 && config.heads > 0 &&
                     config.width > 0,
                 "model: vocab, context, layers, heads and width must be positive");
  config.kv_heads = config.kv_heads ? config.kv_heads : config.heads;
  require_config(
      config.width % config.heads == 0,
      str("model.width ", config.width, " is not a multiple of model.heads ", config.heads));
  require_config(
      config.kv_heads > 0 && config.heads % config.kv_heads == 0,
      str("model.heads ", config.heads, " is not a multiple of model.kv_heads ", config.kv_heads));
  require_config(!config.llama || config.width / config.heads % 2 == 0,
                 str("model.width / model.heads is ", config.width / config.heads,
                     ": rotary positions need an even head width"));
  require_config(config.dropout >= 0 && config.dropout < 1,
                 str("model.dropout ", config.dropout, " is not in [0, 1)"));
  require_config(config.ffn_width >= 0, str("model.ffn_width ", config.ffn_width, " is negative"));
  if (config.ffn_width == 0) {
    config.ffn_width =
        config.llama ? ((8 * config.width + 2) / 3 + 31) / 32 * 32 : 4 * config.width;
  }
  return config;
}

Parameter matrix(const char* name, int64_t rows, int64_t columns) {
  return {.name = name, .shape = {rows, columns}, .init = Initializer::normal(0.02), .decay = true};
}

}  // namespace

Transformer::Transformer(const TransformerConfig& config)
    : config_(resolve(config)), wte_(matrix("wte", config_.vocab, config_.width)) {
  wte_.shared = config_.tie_embeddings;
  if (config_.llama) {
    norm_f_.emplace("norm_f", config_.width);
  } else {
    wpe_ = matrix("wpe", config_.context, config_.width);
    ln_f_.emplace("ln_f", config_.width);
  }
  for (int64_t i = 0; i < config_.layers; ++i) {
    blocks_.push_back(config_.llama ? llama_block(config_, i) : gpt_block(config_, i));
  }
  if (!config_.tie_embeddings) {
    head_weight_ = matrix("head.weight", config_.vocab, config_.width);
  }
}

std::vector<BlockParameters> Transformer::blocks() {
  std::vector<BlockParameters> list;
  const auto collect = [&](Parameter& parameter) { list.back().parameters.push_back(&parameter); };
  list.push_back({"embedding", {&wte_}});
  if (wpe_) {
    collect(*wpe_);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    list.push_back({str("blocks.", i), {}});
    blocks_[i]->visit(collect);
  }
  list.push_back({"head", {}});
  if (ln_f_) {
    ln_f_->visit(collect);
  } else {
    norm_f_->visit(collect);
  }
  if (head_weight_) {
    collect(*head_weight_);
  }
  return list;
}

Variable Transformer::embed(Context& context, Gate& gate, const Tensor& tokens,
                            int64_t first_position) {
  return run_block(context, gate, 0, config_.recompute, Variable(tokens),
                   [this, first_position](Context& inner, const Variable& x) {
                     return dropout(
                         inner,
                         embedding(inner, x.value(), wte_, wpe_ ? &*wpe_ : nullptr, first_position),
                         config_.dropout, kEmbeddingSite);
                   });
}

Variable Transformer::layer(Context& context, Gate& gate, int64_t index, const Variable& x,
                            KeyValueCache* cache) {
  return run_block(context, gate, static_cast<BlockId>(1 + index), config_.recompute, x,
                   [this, index, cache](Context& inner, const Variable& y) {
                     return (*blocks_[index])(inner, y, cache);
                   });
}

Variable Transformer::head(Context& context, Gate& gate, const Variable& x) {
  const auto body = [this](Context& inner, const Variable& y) {
    const Variable normal = ln_f_ ? (*ln_f_)(inner, y) : (*norm_f_)(inner, y);
    Parameter& weight = head_weight_ ? *head_weight_ : wte_;
    const Variable logits = linear(inner, normal, weight, nullptr);
    return Variable(logits.value().reshape({y.elements() / config_.width, weight.shape[0]}),
                    logits.slot());
  };
  return run_block(context, gate, static_cast<BlockId>(1 + config_.layers), config_.recompute, x,
                   body);
}

Variable Transformer::forward(Context& context, Gate& gate, const Tensor& tokens) {
  require(tokens.shape().rank() == 2 && tokens.shape()[1] <= config_.context, [&] {
    return str("Transformer: tokens ", tokens.shape(), " with a context of ", config_.context);
  });
  Variable x = embed(context, gate, tokens, 0);
  for (int64_t i = 0; i < config_.layers; ++i) {
    x = layer(context, gate, i, x, nullptr);
  }
  return head(context, gate, x);
}

Tensor Transformer::decode(Context& context, Gate& gate, const Tensor& tokens,
                           std::span<KeyValueCache> caches) {
  require(!context.tape && caches.size() == blocks_.size() && tokens.shape().rank() == 2 &&
              tokens.shape()[0] == 1,
          "Transformer::decode: wants one sequence, one cache for each layer and no tape");
  Variable x = embed(context, gate, tokens, caches.front().length);
  for (int64_t i = 0; i < config_.layers; ++i) {
    x = layer(context, gate, i, x, &caches[i]);
  }
  const Tensor last = x.value().slice(x.elements() - config_.width, config_.width);
  return head(context, gate, Variable(last.reshape({1, config_.width})))
      .value()
      .slice(0, config_.vocab);
}

double Transformer::flops_per_sample() const {
  const HeadLayout heads = config_.head_layout();
  const int64_t attention = config_.width * heads.row() + config_.width * config_.width;
  const int64_t ffn = (config_.llama ? 3 : 2) * config_.width * config_.ffn_width;
  const int64_t products = config_.layers * (attention + ffn) + config_.vocab * config_.width;
  const double length = static_cast<double>(config_.context);
  return 6.0 * static_cast<double>(products) * length +
         12.0 * static_cast<double>(config_.layers * config_.width) * length * length / 2;
}

}  // namespace tandem

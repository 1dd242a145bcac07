#include "layers/models/transformer_block.h"

#include <algorithm>
#include <cmath>

#include "layers/activation/activation.h"
#include "layers/add/add.h"
#include "layers/dropout/dropout.h"
#include "src/device/copy.h"

namespace tandem {

namespace {

// Ends a block. A recomputed block does the addition, so that the tape keeps one tensor as the next
// block's input, not two.
Flow end_of_block(Context& context, const Variable& residual, Variable branch) {
  if (context.recompute) {
    return {add(context, residual, std::move(branch))};
  }
  return {residual, std::move(branch)};
}

}  // namespace

Variable with_rows(Context& context, Variable x, int64_t rows) {
  const int64_t width = x.shape()[1], here = x.shape()[0], common = std::min(here, rows) * width;
  if (rows == here) {
    return x;
  }
  require(!context.tape, "with_rows: only without a tape");
  if (rows < here) {
    return Variable(x.value().slice(0, common).reshape({rows, width}));
  }
  const Tensor all = context.activation({rows, width}, x.dtype());
  copy(context.stream, x.value(), all.slice(0, common));
  zero(context.stream, all.slice(common, rows * width - common));
  return Variable(all);
}

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
      proj_(writer("attn.proj", config.heads_width(), config.has_projection_bias())),
      norm_2_(norm(config.style.norm_2)),
      up_(up()),
      down_(writer(config.style.down, config.ffn_width, config.style.is_biased)) {
  if (config.qk_norm) {
    qk_gains_ = qk_gains(config.head_layout());
  }
  for (Linear* layer : {&qkv_, &proj_, &up_, &down_}) {
    layer->adapt(config.lora);  // with a rank of 0 there are no targets
  }
}

Norm TransformerBlock::norm(const char* name) const {
  return {str("blocks.", index_, ".", name), config_.width, config_.norm_epsilon,
          config_.style.is_biased};
}

// Layers that read the residual stream together. Ranks cut them by outputs.
Linear TransformerBlock::reader(const char* name, std::vector<Linear::Outputs> layers,
                                bool with_bias) const {
  const std::string block = str("blocks.", index_, ".");
  for (Linear::Outputs& layer : layers) {
    layer.name = block + layer.name;
  }
  return Linear::cut_by_outputs(block + name, config_.width, layers, Initializer::normal(0.02),
                                with_bias, config_.cut);
}

// A layer that writes to the residual stream. Ranks cut it by inputs.
Linear TransformerBlock::writer(const char* name, int64_t in, bool with_bias) const {
  const double deviation = 0.02 / std::sqrt(2.0 * static_cast<double>(config_.layers));
  return Linear::cut_by_inputs(str("blocks.", index_, ".", name), in, config_.width,
                               Initializer::normal(deviation), with_bias, config_.cut);
}

Linear TransformerBlock::qkv(const HeadLayout& heads) const {
  const int64_t kv_width = heads.kv_heads * heads.width;
  return reader("attn.qkv",
                {{"attn.q", heads.heads * heads.width}, {"attn.k", kv_width}, {"attn.v", kv_width}},
                config_.has_qkv_bias());
}

// The gains of queries' and of keys' heads, as one parameter.
Parameter TransformerBlock::qk_gains(const HeadLayout& heads) const {
  const std::string attention = str("blocks.", index_, ".attn.");
  return {.name = attention + "qk_norm.gain",
          .shape = {2 * heads.width},
          .init = Initializer::constant(1),
          .pieces = {{attention + "q_norm.gain", Shape{heads.width}},
                     {attention + "k_norm.gain", Shape{heads.width}}}};
}

Linear TransformerBlock::up() const {
  const char* name = config_.style.up;
  const int64_t width = config_.ffn_width;
  const bool biased = config_.style.is_biased;
  return config_.style.is_gated ? reader(name, {{"mlp.gate", width}, {"mlp.up", width}}, biased)
                                : reader(name, {{name, width}}, biased);
}

Variable TransformerBlock::rotated(Context& context, Variable qkv, const HeadLayout& heads) {
  return qk_gains_ ? norm_rope(context, qkv, *qk_gains_, config_.norm_epsilon, heads, config_.rope)
                   : rope(context, std::move(qkv), heads, config_.rope);
}

Variable TransformerBlock::attend(Context& context, Variable qkv, CachedRows* cached) {
  const HeadLayout heads = config_.heads_here();
  const int64_t batch = context.rows.batch, length = context.rows.length;
  const int64_t rows = qkv.shape()[0];
  qkv = with_rows(context, std::move(qkv), batch * length).reshape({batch, length, heads.row()});
  if (config_.style.is_rotary) {
    qkv = rotated(context, std::move(qkv), heads);
  }
  const int64_t window = config_.sliding_window;
  Variable y = cached ? attention_cached(context, std::move(qkv).reshape({batch, heads.row()}),
                                         heads, cached->caches[index_], cached->slots, window)
                      : attention(context, qkv, heads, window);
  return with_rows(context, std::move(y).reshape({batch * length, heads.heads * heads.width}),
                   rows);
}

Variable TransformerBlock::feed_forward(Context& context, const Variable& x) {
  if (config_.style.is_gated) {
    const Variable hidden = swiglu(context, up_(context, x));
    return down_(context, hidden);
  }
  if (up_.is_adapted() || down_.is_adapted()) {
    return down_(context, gelu(context, up_(context, x)));
  }
  return down_(context, up_.gelu(context, x));
}

Flow TransformerBlock::operator()(Context& context, Flow x, CachedRows* cached) {
  const auto site = static_cast<uint32_t>(1 + 2 * index_);  // of dropout: 0 is the embedding
  Variable qkv = qkv_(context, normalized(context, x, norm_1_));
  const Variable y = attend(context, std::move(qkv), cached);
  const Normalized middle =
      norm_2_.add(context, x[0], dropout(context, proj_(context, y), config_.dropout, site));
  return end_of_block(context, middle.sum,
                      dropout(context, feed_forward(context, middle.y), config_.dropout, site + 1));
}

std::vector<Parameter*> TransformerBlock::parameters() {
  std::vector<Parameter*> all = parameters_in(norm_1_, qkv_);
  if (qk_gains_) {
    all.push_back(&*qk_gains_);
  }
  const std::vector<Parameter*> rest = parameters_in(proj_, norm_2_, up_, down_);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace tandem

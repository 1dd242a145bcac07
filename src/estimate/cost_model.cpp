#include "src/estimate/cost_model.h"

#include <algorithm>

#include "layers/attention/attention.h"

namespace tandem {

namespace {

// The longest row of logits that a block of sm_80 holds in shared memory; sm_90 holds more, sm_86
// and sm_89 less.
constexpr double kHeldBytes = 162 * 1024;

double as_double(int64_t value) { return static_cast<double>(value); }

class StepCosts {
 public:
  StepCosts(const TransformerConfig& config, int64_t batch, DType dtype, int64_t document_length)
      : config_(config),
        document_(document_length > 0 ? std::min(document_length, config.context) : config.context),
        heads_(config.head_layout()),
        batch_(batch),
        rows_(batch * config.context),
        dtype_(dtype),
        element_(as_double(size_of(dtype))),
        layers_(as_double(config.layers)),
        stream_(activation(config.width)) {}

  std::vector<OpCost> all() {
    embedding();
    norms();
    const int64_t width = config_.width, ffn = config_.ffn_width;
    linear({.name = "QKV",
            .in = width,
            .out = heads_.row(),
            .calls = layers_,
            .biased = config_.has_qkv_bias()});
    attention();
    linear({.name = "attention projection",
            .in = config_.heads_width(),
            .out = width,
            .calls = layers_,
            .biased = config_.has_projection_bias()});
    if (config_.style.is_gated) {
      linear({.name = "gate and up", .in = width, .out = 2 * ffn, .calls = layers_});
      swiglu();
      linear({.name = "down", .in = ffn, .out = width, .calls = layers_});
    } else {
      linear({.name = "FC1",
              .in = width,
              .out = ffn,
              .calls = layers_,
              .biased = true,
              .gelu_after = true});
      gelu();
      linear({.name = "FC2",
              .in = ffn,
              .out = width,
              .calls = layers_,
              .biased = true,
              .gelu_before = true});
    }
    linear({.name = "head", .in = width, .out = config_.vocab, .calls = 1});
    cross_entropy();
    bias_gradients();
    optimizer();
    return std::move(ops_);
  }

 private:
  struct Linear {
    std::string name;
    int64_t in, out;
    double calls;
    bool biased = false, gelu_after = false, gelu_before = false;
  };

  // Bytes of [rows, columns].
  double activation(int64_t columns) const {
    return as_double(rows_) * as_double(columns) * element_;
  }

  // Products of one linear layer. The floor of GELU is in the product beside it: forward stores its
  // input too, and backward reads that. Our schedule has a pass of its own for it.
  void linear(const Linear& layer) {
    const double x = activation(layer.in), y = activation(layer.out);
    const double weight = as_double(layer.in) * as_double(layer.out);
    const auto add_product = [&](const char* pass, const ProductShape& shape, double floor,
                                 double schedule, double small) {
      add(layer.name + pass, "product", layer.calls, 1, floor, schedule, small);
      ops_.back().flops = shape.flops();
      ops_.back().product = shape;
    };
    add_product(" forward",
                {.m = rows_,
                 .n = layer.out,
                 .k = layer.in,
                 .b_transposed = true,
                 .bias = layer.biased,
                 .epilogue = layer.gelu_after ? Epilogue::kGelu : Epilogue::kNone},
                x + (layer.gelu_after ? 2 : 1) * y, x + y,
                (weight + (layer.biased ? as_double(layer.out) : 0)) * element_);
    add_product(" weight gradient",
                {.m = layer.out, .n = layer.in, .k = rows_, .a_transposed = true, .wide = true},
                x + y, x + y, weight * kWide);
    add_product(" input gradient",
                {.m = rows_,
                 .n = layer.in,
                 .k = layer.out,
                 .epilogue = layer.gelu_before ? Epilogue::kGeluGradient : Epilogue::kNone},
                (layer.gelu_before ? 2 : 1) * x + y, x + y, weight * element_);
  }

  // Forward reads the rows of the tokens and writes them. Backward reads dy and adds each row to a
  // gradient in f32, where a token that occurs often is summed first. Our schedule sorts the tokens
  // by two digits, and reads dy once more for the positions.
  void embedding() {
    const double tokens = as_double(rows_) * sizeof(int32_t);
    add("embedding forward", "embedding", 1, 1, 2 * stream_, 2 * stream_, tokens);
    const double touched = as_double(std::min(rows_, config_.vocab)) * as_double(config_.width);
    add("token order", "embedding", 1, config_.vocab > 256 ? 7 : 4, 0, 4 * tokens, 0);
    add("embedding backward", "embedding", 1, config_.style.is_rotary ? 1 : 2, 2 * stream_,
        (config_.style.is_rotary ? 1 : 2) * stream_ + 2 * kWide * touched, tokens);
  }

  // The first norm has nothing to add; the last one's backward has no gradient of the residual
  // stream to add to. The partial sums of the gains' gradients are small.
  void norms() {
    const double norms = 2 * layers_ + 1;
    const double row = as_double(rows_) * kWide * (config_.style.is_biased ? 2 : 1);
    add("norm forward, the first", "norm", 1, 1, 2 * stream_, 2 * stream_, row);
    add("residual add + norm forward", "norm", norms - 1, 1, 4 * stream_, 4 * stream_, row);
    add("norm backward", "norm", norms - 1, 1, 4 * stream_, 4 * stream_, row);
    add("norm backward, the last", "norm", 1, 1, 3 * stream_, 3 * stream_, row);
  }

  // Half of the square of scores, or of each document's, is masked. Backward computes the scores
  // again: 5 products, not 4. Its first launch writes <dy, y> of each row for its second one. RoPE
  // could be done where queries and keys are read, so its floor is 0.
  void attention() {
    const double pairs = 2 * seen_pairs(config_.context, document_, config_.sliding_window);
    const double product = pairs * as_double(batch_ * heads_.heads * heads_.width);
    const double qkv = activation(heads_.row()), y = activation(heads_.heads * heads_.width);
    const double log_sum = as_double(rows_ * heads_.heads) * kWide;
    if (config_.style.is_rotary) {
      const double turned = activation((heads_.heads + heads_.kv_heads) * heads_.width);
      // A norm of heads is part of the pass; backward reads the heads again, and sums for its
      // gains.
      const double whole = config_.qk_norm ? activation(heads_.row()) : turned;
      add(config_.qk_norm ? "norm + RoPE forward" : "RoPE forward", "rope", layers_, 1, 0,
          2 * whole, 0);
      add(config_.qk_norm ? "norm + RoPE backward" : "RoPE backward", "rope", layers_,
          config_.qk_norm ? 3 : 1, 0, (config_.qk_norm ? 3 : 2) * whole, 0);
    }
    if (config_.sliding_window > 0 && config_.sliding_window < config_.context) {
      add("sliding window", "attention", layers_, 1, 0, 0, as_double(rows_) * sizeof(int32_t));
    }
    add("attention forward", "attention", layers_, 1, qkv + y, qkv + y, log_sum);
    ops_.back().flops = 2 * product;
    add("attention backward", "attention", layers_, 2, 2 * qkv + 2 * y, 2 * qkv + 2 * y,
        2 * log_sum);
    ops_.back().flops = 5 * product;
  }

  void gelu() {
    const double hidden = activation(config_.ffn_width);
    add("GELU forward", "product", layers_, 1, 0, 2 * hidden, 0);
    add("GELU backward", "product", layers_, 1, 0, 3 * hidden, 0);
  }

  void swiglu() {
    const double hidden = activation(config_.ffn_width);
    add("SwiGLU forward", "activation", layers_, 1, 3 * hidden, 3 * hidden, 0);
    add("SwiGLU backward", "activation", layers_, 1, 5 * hidden, 5 * hidden, 0);
  }

  // Loss and gradient in one pass over rows that are held on chip, in place. Rows that are too long
  // for that are read twice. Of each row there are a target and a loss.
  void cross_entropy() {
    const double logits = activation(config_.vocab), row = as_double(rows_) * kWide;
    const bool held = as_double(config_.vocab) * element_ <= kHeldBytes;
    add("cross-entropy", "cross_entropy", 1, 1, 2 * logits, (held ? 2 : 3) * logits, 2 * row);
  }

  // The backward passes of norms, GELU and attention on tensor cores sum over chunks of rows on
  // their way; other attention leaves QKV to a pass of its own. A launch finishes all sums of a
  // block. Chunks are long, but for attention's: it writes and reads them.
  void bias_gradients() {
    if (!config_.has_qkv_bias()) {
      return;
    }
    const int64_t chunks =
        kernels::attention_row_chunks(Device::kCuda, dtype_, batch_, config_.context, heads_.width);
    const double row = as_double(heads_.row()) * kWide;
    add("QKV bias gradient", "linear", layers_, chunks > 0 ? 1 : 2, 0,
        chunks > 0 ? 2 * as_double(chunks) * row : activation(heads_.row()), row);
  }

  // AdamW reads the gradient, reads and writes the master, m and v, and writes the weight that
  // layers compute with. In f32 the weight is the master.
  void optimizer() {
    const double parameters = transformer_parameters(config_);
    const double working = element_ < kWide ? element_ : 0;
    add("gradient norm", "sharding", 1, 2, kWide * parameters, kWide * parameters, 0);
    add("AdamW", "optim", 1, 2, (7 * kWide + working) * parameters,
        (7 * kWide + working) * parameters, 0);
  }

  void add(std::string name, std::string_view group, double calls, double launches, double floor,
           double schedule, double small) {
    ops_.push_back({.name = std::move(name),
                    .group = group,
                    .calls = calls,
                    .launches = launches,
                    .floor_bytes = floor,
                    .schedule_bytes = schedule,
                    .small_bytes = small});
  }

  static constexpr double kWide = sizeof(float);

  TransformerConfig config_;
  int64_t document_;  // tokens
  HeadLayout heads_;
  int64_t batch_, rows_;
  DType dtype_;
  double element_, layers_;
  double stream_;  // bytes of the residual stream
  std::vector<OpCost> ops_;
};

}  // namespace

std::vector<OpCost> transformer_costs(const TransformerConfig& config, int64_t batch, DType dtype,
                                      int64_t document_length) {
  return StepCosts(config, batch, dtype, document_length).all();
}

double transformer_parameters(const TransformerConfig& config) {
  const int64_t width = config.width, ffn = config.ffn_width, qkv = config.head_layout().row();
  const int64_t norm = config.style.is_biased ? 2 * width : width;
  const int64_t matrices =
      width * (qkv + config.heads_width() + (config.style.is_gated ? 3 : 2) * ffn);
  const int64_t biases = (config.has_qkv_bias() ? qkv : 0) +
                         (config.has_projection_bias() ? width : 0) +
                         (config.style.is_biased ? ffn + width : 0);
  const int64_t tables = config.vocab * (config.tie_embeddings ? 1 : 2) +
                         (config.style.is_rotary ? 0 : config.positions);
  const int64_t gains = config.qk_norm ? 2 * config.head_layout().width : 0;
  return as_double(config.layers * (matrices + biases + 2 * norm + gains) + norm + tables * width);
}

double floor_seconds(const OpCost& op, const Speed& ceilings) {
  return op.calls * std::max(op.flops / ceilings.flops_per_s,
                             op.floor_bytes > 0
                                 ? (op.floor_bytes + op.small_bytes) / ceilings.bytes_per_s
                                 : 0);
}

}  // namespace tandem

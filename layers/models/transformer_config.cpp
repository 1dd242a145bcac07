#include "layers/models/transformer_config.h"

#include "src/core/error.h"

namespace tandem {

namespace {

void require_config(bool ok, const std::string& message) {
  if (!ok) {
    fail(ExitCode::kConfig, message);
  }
}

int64_t default_ffn_width(const TransformerConfig& config) {
  return config.style.is_gated ? ((8 * config.width + 2) / 3 + 31) / 32 * 32 : 4 * config.width;
}

}  // namespace

std::vector<std::string> TransformerConfig::problems() const {
  std::vector<std::string> problems;
  const int64_t of_head = head_layout().width;
  if (head_width == 0 && width % heads != 0) {
    add_problem(problems, "model.width = ", width, " is not divisible by model.heads = ", heads);
  } else if (style.is_rotary && of_head % 2 != 0) {
    add_problem(problems,
                head_width ? "model.head_width = " : "model.width / model.heads = ", of_head,
                " must be even: rotary positions turn pairs");
  }
  if (qk_norm && !style.is_rotary) {
    problems.emplace_back("model.qk_norm needs rotary positions");
  }
  if (kv_heads > 0 && heads % kv_heads != 0) {
    add_problem(problems, "model.heads = ", heads,
                " is not divisible by model.kv_heads = ", kv_heads);
  }
  if (positions > 0 && positions < context) {
    add_problem(problems, "model.positions = ", positions, " is below model.context = ", context);
  }
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    add_problem(problems, "model.rope_high_freq_factor = ", rope.high_freq_factor,
                " must be above model.rope_low_freq_factor = ", rope.low_freq_factor);
  }
  return problems;
}

std::string TransformerConfig::why_not_cut(int64_t ranks) const {
  const std::pair<const char*, int64_t> sizes[] = {
      {"model.heads", heads},
      {"model.kv_heads", kv_heads ? kv_heads : heads},
      {"model.ffn_width", ffn_width ? ffn_width : default_ffn_width(*this)}};
  for (const auto& [name, size] : sizes) {
    if (size % ranks != 0) {
      return str(name, " = ", size);
    }
  }
  return "";
}

std::vector<std::string> TransformerConfig::adaptable() const {
  return style.is_gated ? std::vector<std::string>{"attn.q",   "attn.k", "attn.v",  "attn.proj",
                                                   "mlp.gate", "mlp.up", "mlp.down"}
                        : std::vector<std::string>{"attn.qkv", "attn.proj", "mlp.fc", "mlp.proj"};
}

TransformerConfig resolved(TransformerConfig config) {
  require_config(config.vocab > 0 && config.context > 0 && config.layers > 0 && config.heads > 0 &&
                     config.width > 0,
                 "model: vocab, context, layers, heads and width must be positive");
  fail_if_any(config.problems());
  config.kv_heads = config.kv_heads ? config.kv_heads : config.heads;
  config.positions = config.positions ? config.positions : config.context;
  require_config(config.dropout >= 0 && config.dropout < 1,
                 str("model.dropout ", config.dropout, " is not in [0, 1)"));
  require_config(config.kv_heads >= 0 && config.ffn_width >= 0,
                 "model: kv_heads and ffn_width must not be negative");
  config.head_width = config.head_layout().width;
  if (config.ffn_width == 0) {
    config.ffn_width = default_ffn_width(config);
  }
  require_config(config.vocab >= config.cut.count,
                 str("a vocabulary of ", config.vocab, " cannot be cut by ", config.cut.count,
                     " ranks; take fewer"));
  require_config(
      config.lora.rank == 0 || config.cut.count == 1,
      str("lora.rank = ", config.lora.rank, ": ranks cannot cut layers with adapters; ",
          "leave out --tensor (with generate: mpirun), or merge them with tandem export ",
          "--merge"));
  const std::string problem = config.why_not_cut(config.cut.count);
  require_config(problem.empty(), str(config.cut.count, " ranks cannot divide ", problem));
  return config;
}

}  // namespace tandem

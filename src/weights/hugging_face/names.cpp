#include "src/weights/hugging_face/names.h"

#include <utility>

namespace tandem {

namespace {

// Adds the parameters of one model to a table.
struct Table {
  std::vector<HuggingFaceParameter> parameters;

  void add(const std::string& name, const Shape& shape, const std::string& theirs) {
    parameters.push_back({name, shape, {{theirs, shape}}});
  }
  // Matrices of so many rows each, one below the other.
  void add_stacked(const std::string& name, int64_t columns,
                   const std::vector<std::pair<std::string, int64_t>>& parts) {
    HuggingFaceParameter parameter{.name = name};
    int64_t rows = 0;
    for (const auto& [theirs, count] : parts) {
      parameter.parts.push_back({theirs, {count, columns}});
      rows += count;
    }
    parameter.shape = {rows, columns};
    parameters.push_back(std::move(parameter));
  }
  // NAME.weight [outputs, inputs] and NAME.bias, as Conv1D has them.
  void add_conv1d(const std::string& name, int64_t outputs, int64_t inputs,
                  const std::string& theirs) {
    parameters.push_back(
        {name + ".weight", {outputs, inputs}, {{theirs + ".weight", {inputs, outputs}, true}}});
    add(name + ".bias", {outputs}, theirs + ".bias");
  }
  void add_layer_norm(const std::string& name, int64_t width, const std::string& theirs) {
    add(name + ".gain", {width}, theirs + ".weight");
    add(name + ".bias", {width}, theirs + ".bias");
  }
};

void add_gpt2(Table& table, const TransformerConfig& config) {
  const int64_t width = config.width;
  const std::string prefix(kGpt2Prefix);
  table.add("wte", {config.vocab, width}, prefix + "wte.weight");
  table.add("wpe", {config.positions, width}, prefix + "wpe.weight");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string ours = str("blocks.", i, "."), theirs = str(prefix, "h.", i, ".");
    table.add_layer_norm(ours + "ln_1", width, theirs + "ln_1");
    table.add_conv1d(ours + "attn.qkv", 3 * width, width, theirs + "attn.c_attn");
    table.add_conv1d(ours + "attn.proj", width, width, theirs + "attn.c_proj");
    table.add_layer_norm(ours + "ln_2", width, theirs + "ln_2");
    table.add_conv1d(ours + "mlp.fc", config.ffn_width, width, theirs + "mlp.c_fc");
    table.add_conv1d(ours + "mlp.proj", width, config.ffn_width, theirs + "mlp.c_proj");
  }
  table.add_layer_norm("ln_f", width, prefix + "ln_f");
}

void add_llama(Table& table, const TransformerConfig& config) {
  const int64_t width = config.width, kv_width = config.kv_heads * config.head_layout().width;
  table.add("wte", {config.vocab, width}, "model.embed_tokens.weight");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string ours = str("blocks.", i, "."), theirs = str("model.layers.", i, ".");
    table.add(ours + "norm_1.gain", {width}, theirs + "input_layernorm.weight");
    table.add_stacked(ours + "attn.qkv.weight", width,
                      {{theirs + "self_attn.q_proj.weight", width},
                       {theirs + "self_attn.k_proj.weight", kv_width},
                       {theirs + "self_attn.v_proj.weight", kv_width}});
    table.add(ours + "attn.proj.weight", {width, width}, theirs + "self_attn.o_proj.weight");
    table.add(ours + "norm_2.gain", {width}, theirs + "post_attention_layernorm.weight");
    table.add_stacked(ours + "mlp.gate_up.weight", width,
                      {{theirs + "mlp.gate_proj.weight", config.ffn_width},
                       {theirs + "mlp.up_proj.weight", config.ffn_width}});
    table.add(ours + "mlp.down.weight", {width, config.ffn_width}, theirs + "mlp.down_proj.weight");
  }
  table.add("norm_f.gain", {width}, "model.norm.weight");
}

}  // namespace

std::vector<HuggingFaceParameter> hugging_face_parameters(const TransformerConfig& config) {
  Table table;
  config.style.is_rotary ? add_llama(table, config) : add_gpt2(table, config);
  if (!config.tie_embeddings) {
    table.add("head.weight", {config.vocab, config.width}, "lm_head.weight");
  }
  return std::move(table.parameters);
}

bool is_no_hugging_face_parameter(std::string_view name, const TransformerConfig& config) {
  if (name == "lm_head.weight") {
    return config.tie_embeddings;
  }
  return config.style.is_rotary
             ? name.ends_with(".rotary_emb.inv_freq")
             : name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace tandem

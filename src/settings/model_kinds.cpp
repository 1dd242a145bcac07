#include "src/settings/model_kinds.h"

#include <algorithm>

#include "layers/models/resnet.h"

namespace tandem {

namespace {

using Problems = std::vector<std::string>;

RopeFrequencies rope_frequencies(const ModelConfig& model) {
  RopeFrequencies rope{.theta = model.rope_theta};
  if (model.rope_scaling != RopeScaling::kNone) {
    rope.factor = model.rope_factor;
  }
  if (model.rope_scaling == RopeScaling::kLlama3) {
    rope.original_context = static_cast<double>(model.rope_original_context);
    rope.low_freq_factor = model.rope_low_freq_factor;
    rope.high_freq_factor = model.rope_high_freq_factor;
  }
  return rope;
}

Problems transformer_problems(const ModelConfig& model) {
  return transformer_config(model, 0).problems();
}

// What each value of model.kind stands for.
struct Kind {
  const char* name;
  bool reads_text;
  Problems (*problems)(const ModelConfig& model);  // sizes that do not fit together
};
constexpr Kind kKinds[] = {
    {"gpt", true, transformer_problems},
    {"llama", true, transformer_problems},
    {"resnet", false,
     [](const ModelConfig& model) { return ResNetConfig{.depth = model.depth}.problems(); }},
    {"mlp", false, [](const ModelConfig&) { return Problems(); }}};

const Kind& kind_of(const ModelConfig& model) {
  const Kind* found = std::ranges::find(kKinds, model.kind, &Kind::name);
  require(found != std::end(kKinds), [&] { return "no model " + model.kind; });
  return *found;
}

}  // namespace

// What only the other kind reads is left out; config.cpp refuses it.
TransformerConfig transformer_config(const ModelConfig& model, int64_t vocab) {
  const bool llama = model.kind == "llama";
  return {.llama = llama,
          .vocab = vocab,
          .context = model.context,
          .positions = llama ? 0 : model.positions,
          .layers = model.layers,
          .heads = model.heads,
          .kv_heads = llama ? model.kv_heads : 0,
          .width = model.width,
          .ffn_width = model.ffn_width,
          .dropout = model.dropout,
          .tie_embeddings = model.tie_embeddings,
          .norm_epsilon = model.norm_eps,
          .rope = llama ? rope_frequencies(model) : RopeFrequencies{}};
}

Choices<std::string> model_kinds() {
  Choices<std::string> names;
  for (const Kind& kind : kKinds) {
    names.emplace_back(kind.name, kind.name);
  }
  return names;
}

std::vector<std::string> ModelConfig::problems() const { return kind_of(*this).problems(*this); }

bool ModelConfig::reads_text() const { return kind_of(*this).reads_text; }

}  // namespace tandem

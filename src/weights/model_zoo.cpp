#include "src/weights/model_zoo.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "layers/models/mlp.h"
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

std::unique_ptr<Model> make_transformer(const ModelConfig& model, const DatasetInfo& data) {
  if (model.vocab > 0 && model.vocab < data.vocab_size) {
    fail(ExitCode::kData, str(data.path, ": the tokenizer has ", data.vocab_size,
                              " tokens, but the model's vocabulary is model.vocab = ", model.vocab,
                              "; prepare the data with the model's tokenizer"));
  }
  return std::make_unique<Transformer>(
      transformer_config(model, model.vocab > 0 ? model.vocab : data.vocab_size));
}

Problems transformer_problems(const ModelConfig& model) {
  return transformer_config(model, 0).problems();
}

std::unique_ptr<Model> make_resnet_for(const ModelConfig& model, const DatasetInfo& data) {
  return make_resnet({.depth = model.depth,
                      .in_channels = data.channels,
                      .height = data.height,
                      .width = data.width,
                      .classes = std::ssize(data.classes)});
}

std::unique_ptr<Model> make_mlp(const ModelConfig& model, const DatasetInfo& data) {
  return std::make_unique<Mlp>(MlpConfig{.image_height = data.height,
                                         .image_width = data.width,
                                         .channels = data.channels,
                                         .layers = model.layers,
                                         .width = model.width,
                                         .classes = std::ssize(data.classes)});
}

// What each value of model.kind stands for.
struct Kind {
  const char* name;
  DatasetKind reads;
  std::unique_ptr<Model> (*make)(const ModelConfig& model, const DatasetInfo& data);
  Problems (*problems)(const ModelConfig& model);  // sizes that do not fit together
};
constexpr Kind kKinds[] = {
    {"gpt", DatasetKind::kText, make_transformer, transformer_problems},
    {"llama", DatasetKind::kText, make_transformer, transformer_problems},
    {"resnet", DatasetKind::kImages, make_resnet_for,
     [](const ModelConfig& model) { return ResNetConfig{.depth = model.depth}.problems(); }},
    {"mlp", DatasetKind::kImages, make_mlp, [](const ModelConfig&) { return Problems(); }}};

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

bool ModelConfig::reads_text() const { return kind_of(*this).reads == DatasetKind::kText; }

std::unique_ptr<Model> make_model(const ModelConfig& config, const DatasetInfo& data) {
  const Kind& kind = kind_of(config);
  require_kind(data, kind.reads, config.kind);
  std::unique_ptr<Model> model = kind.make(config, data);
  freeze(*model, config.freeze);
  return model;
}

void freeze(Model& model, const std::string& patterns) {
  const std::vector<Parameter*> parameters = parameters_of(model);
  std::istringstream list(patterns);
  for (std::string pattern; std::getline(list, pattern, ',');) {
    bool is_used = false;
    for (Parameter* parameter : parameters) {
      if (fnmatch(pattern.c_str(), parameter->name.c_str(), FNM_NOESCAPE) == 0) {
        parameter->frozen = is_used = true;
      }
    }
    if (!is_used) {
      fail(ExitCode::kConfig,
           str("model.freeze: ", pattern, " names no parameter; the first is ",
               parameters.front()->name, ", the last ", parameters.back()->name));
    }
  }
  if (std::ranges::none_of(parameters, &Parameter::wanted)) {
    fail(ExitCode::kConfig, str("model.freeze = ", patterns, " leaves nothing to train"));
  }
}

ParameterCount parameter_count(Model& model) {
  ParameterCount count;
  for (const Parameter* parameter : parameters_of(model)) {
    const int64_t elements = parameter->shape.elements();
    count.all += elements;
    count.trained += parameter->wanted() ? elements : 0;
  }
  return count;
}

}  // namespace tandem

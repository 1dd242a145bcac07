#include "src/train/model_zoo.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "layers/models/mlp.h"
#include "layers/models/resnet.h"
#include "layers/models/transformer.h"

namespace tandem {

namespace {

using Problems = std::vector<std::string>;

std::unique_ptr<Model> make_transformer(const ModelConfig& model, const DatasetInfo& data) {
  TransformerConfig config;
  config.llama = model.kind == "llama";
  config.vocab = data.vocab_size;
  config.context = model.context;
  config.layers = model.layers;
  config.heads = model.heads;
  config.kv_heads = model.kv_heads;
  config.width = model.width;
  config.ffn_width = model.ffn_width;
  config.dropout = model.dropout;
  config.tie_embeddings = model.tie_embeddings;
  return std::make_unique<Transformer>(config);
}

// A gpt reads no kv_heads; config.cpp refuses them.
Problems transformer_problems(const ModelConfig& model) {
  const bool llama = model.kind == "llama";
  return TransformerConfig{.llama = llama,
                           .heads = model.heads,
                           .kv_heads = llama ? model.kv_heads : 0,
                           .width = model.width}
      .problems();
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

#include "src/train/model_zoo.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "layers/mlp.h"
#include "layers/resnet.h"
#include "layers/transformer.h"

namespace tandem {

namespace {

TransformerConfig transformer_config(const ModelConfig& model, const DatasetInfo& data) {
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
  return config;
}

std::unique_ptr<Model> make_unfrozen(const ModelConfig& model, const DatasetInfo& data) {
  require_kind(data, model.reads_text() ? DatasetKind::kText : DatasetKind::kImages, model.kind);
  if (model.reads_text()) {
    return std::make_unique<Transformer>(transformer_config(model, data));
  }
  const auto classes = static_cast<int64_t>(data.classes.size());
  if (model.kind == "resnet") {
    return make_resnet({.depth = model.depth,
                        .in_channels = data.channels,
                        .height = data.height,
                        .width = data.width,
                        .classes = classes});
  }
  require(model.kind == "mlp", [&] { return "make_model: no model " + model.kind; });
  return std::make_unique<Mlp>(MlpConfig{.image_height = data.height,
                                         .image_width = data.width,
                                         .channels = data.channels,
                                         .layers = model.layers,
                                         .width = model.width,
                                         .classes = classes});
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config, const DatasetInfo& data) {
  std::unique_ptr<Model> model = make_unfrozen(config, data);
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

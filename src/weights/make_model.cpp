#include "src/weights/make_model.h"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

#include "layers/models/mlp.h"
#include "layers/models/resnet.h"
#include "layers/models/transformer.h"
#include "src/settings/model_kinds.h"

namespace tandem {

namespace {

std::unique_ptr<Model> make_transformer(const ModelConfig& model, const DatasetInfo& data) {
  if (model.vocab > 0 && model.vocab < data.vocab_size) {
    fail(ExitCode::kData, str(data.path, ": the tokenizer has ", data.vocab_size,
                              " tokens, but the model's vocabulary is model.vocab = ", model.vocab,
                              "; prepare the data with the model's tokenizer"));
  }
  return std::make_unique<Transformer>(
      transformer_config(model, model.vocab > 0 ? model.vocab : data.vocab_size));
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

// How the model of each value of model.kind is made.
struct Maker {
  const char* kind;
  std::unique_ptr<Model> (*make)(const ModelConfig& model, const DatasetInfo& data);
};
constexpr Maker kMakers[] = {{"gpt", make_transformer},
                             {"llama", make_transformer},
                             {"resnet", make_resnet_for},
                             {"mlp", make_mlp}};

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config, const DatasetInfo& data) {
  require_kind(data, config.reads_text() ? DatasetKind::kText : DatasetKind::kImages, config.kind);
  const Maker* maker = std::ranges::find(kMakers, config.kind, &Maker::kind);
  require(maker != std::end(kMakers), [&] { return "no model " + config.kind; });
  std::unique_ptr<Model> model = maker->make(config, data);
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

#include "src/train/model_zoo.h"

#include "layers/mlp.h"
#include "layers/resnet.h"
#include "layers/transformer.h"

namespace tandem {

namespace {

TransformerConfig transformer_config(const ModelConfig& model, const DatasetInfo& data,
                                     bool recompute) {
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
  config.recompute = recompute;
  return config;
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& model, const DatasetInfo& data,
                                  bool recompute) {
  require_kind(data, model.reads_text() ? DatasetKind::kText : DatasetKind::kImages, model.kind);
  if (model.reads_text()) {
    return std::make_unique<Transformer>(transformer_config(model, data, recompute));
  }
  const auto classes = static_cast<int64_t>(data.classes.size());
  if (model.kind == "resnet") {
    return make_resnet({.depth = model.depth,
                        .in_channels = data.channels,
                        .height = data.height,
                        .width = data.width,
                        .classes = classes,
                        .recompute = recompute});
  }
  require(model.kind == "mlp", [&] { return "make_model: no model " + model.kind; });
  return std::make_unique<Mlp>(MlpConfig{.image_height = data.height,
                                         .image_width = data.width,
                                         .channels = data.channels,
                                         .layers = model.layers,
                                         .width = model.width,
                                         .classes = classes,
                                         .recompute = recompute});
}

int64_t parameter_count(Model& model) {
  int64_t count = 0;
  for (const Parameter* parameter : parameters_of(model)) {
    count += parameter->shape.elements();
  }
  return count;
}

}  // namespace tandem

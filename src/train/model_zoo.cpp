#include "src/train/model_zoo.h"

#include <algorithm>

#include "layers/mlp.h"
#include "layers/resnet.h"
#include "layers/transformer.h"
#include "src/core/copy.h"

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

StatisticsMemory allocate_statistics(Model& model, Stream& stream, Memory& memory) {
  int64_t elements = 0;
  for (const RunningStatistics* statistics : model.statistics()) {
    elements += 2 * statistics->channels;
  }
  if (elements == 0) {
    return {};
  }
  const auto zeros = [&](Memory& where) {
    return Tensor::zeros(where, {elements}, DType::kF32, MemoryClass::kOptimizer);
  };
  const StatisticsMemory all{zeros(memory), zeros(memory)};
  Memory host(Device::kCpu);
  const Tensor start = zeros(host);
  int64_t at = 0;
  for (RunningStatistics* statistics : model.statistics()) {
    const int64_t channels = statistics->channels;
    statistics->sum = all.sum.slice(at, 2 * channels).reshape({2, channels});
    statistics->running = all.running.slice(at, 2 * channels).reshape({2, channels});
    std::fill_n(start.data<float>() + at + channels, channels, 1.0f);
    at += 2 * channels;
  }
  copy(stream, start, all.running);
  return all;
}

int64_t parameter_count(Model& model) {
  int64_t count = 0;
  for (const Parameter* parameter : parameters_of(model)) {
    count += parameter->shape.elements();
  }
  return count;
}

}  // namespace tandem

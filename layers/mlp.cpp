#include "layers/mlp.h"

#include <cmath>

#include "layers/activation.h"

namespace tandem {

namespace {

Linear layer_of(const std::string& name, int64_t in, int64_t out) {
  return Linear(name, in, out, Initializer::normal(std::sqrt(2.0 / static_cast<double>(in))));
}

int64_t pixels_of(const MlpConfig& config) {
  return config.image_height * config.image_width * config.channels;
}

// What the head reads.
int64_t last_width(const MlpConfig& config) {
  return config.layers > 0 ? config.width : pixels_of(config);
}

MlpConfig checked(const MlpConfig& config) {
  if (pixels_of(config) <= 0 || config.layers < 0 || config.width <= 0 || config.classes <= 0) {
    fail(ExitCode::kConfig, "model: mlp needs images, model.width >= 1 and model.layers >= 0");
  }
  return config;
}

}  // namespace

Mlp::Mlp(const MlpConfig& config)
    : config_(checked(config)), head_(layer_of("head", last_width(config), config.classes)) {
  for (int64_t i = 0; i < config.layers; ++i) {
    layers_.push_back(
        layer_of(str("layers.", i), i == 0 ? pixels_of(config) : config.width, config.width));
  }
}

std::vector<BlockParameters> Mlp::blocks() {
  std::vector<BlockParameters> list;
  const auto collect = [&](Parameter& parameter) { list.back().parameters.push_back(&parameter); };
  for (size_t i = 0; i < layers_.size(); ++i) {
    list.push_back({str("layers.", i), {}});
    layers_[i].visit(collect);
  }
  list.push_back({"head", {}});
  head_.visit(collect);
  return list;
}

Variable Mlp::forward(Context& context, Gate& gate, const Tensor& images) {
  const int64_t batch = images.shape()[0];
  require(images.elements() == batch * pixels_of(config_), [&] {
    return str("Mlp: images ", images.shape(), ", want ", config_.image_height, " x ",
               config_.image_width, " x ", config_.channels);
  });
  Variable x(images.reshape({batch, pixels_of(config_)}));
  BlockId id = 0;
  for (Linear& layer : layers_) {
    x = run_block(
        context, gate, id++, config_.recompute, x,
        [&layer](Context& inner, const Variable& y) { return relu(inner, layer(inner, y)); });
  }
  return run_block(context, gate, id, config_.recompute, x,
                   [this](Context& inner, const Variable& y) { return head_(inner, y); });
}

double Mlp::flops_per_sample() const {
  int64_t weights = last_width(config_) * config_.classes;
  for (int64_t i = 0; i < config_.layers; ++i) {
    weights += (i == 0 ? pixels_of(config_) : config_.width) * config_.width;
  }
  return 6.0 * static_cast<double>(weights);
}

}  // namespace tandem

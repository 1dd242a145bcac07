#include "layers/models/mlp.h"

#include <cmath>

#include "layers/activation/activation.h"

namespace tandem {

namespace {

Initializer he_normal(int64_t in) {
  return Initializer::normal(std::sqrt(2.0 / static_cast<double>(in)));
}

int64_t pixels_of(const MlpConfig& config) {
  return config.image_height * config.image_width * config.channels;
}

// The width of the head's input.
int64_t last_width(const MlpConfig& config) {
  return config.layers > 0 ? config.width : pixels_of(config);
}

MlpConfig checked(const MlpConfig& config) {
  if (pixels_of(config) <= 0 || config.layers < 0 || config.width <= 0 || config.classes <= 0) {
    fail(ExitCode::kConfig, "model: mlp needs images, model.width >= 1 and model.layers >= 0");
  }
  return config;
}

// One row for each image.
Variable rows(const Variable& x) {
  const int64_t batch = x.shape()[0];
  return Variable(x.value().reshape({batch, x.elements() / batch}), x.slot());
}

}  // namespace

Mlp::Mlp(const MlpConfig& config)
    : Classifier(config.classes),
      config_(checked(config)),
      head_(Linear::classifier("head", last_width(config), config.classes,
                               he_normal(last_width(config)))) {
  for (int64_t i = 0; i < config.layers; ++i) {
    const int64_t in = i == 0 ? pixels_of(config) : config.width;
    layers_.emplace_back(str("layers.", i), in, config.width, he_normal(in));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    add({{str("layers.", i), parameters_in(layers_[i])},
         [&layer = layers_[i]](Context& context, const Flow& x) -> Flow {
           return {relu(context, layer(context, rows(x[0])))};
         }});
  }
  add({{"head", parameters_in(head_)},
       [this](Context& context, const Flow& x) -> Flow { return {head_(context, rows(x[0]))}; }});
}

double Mlp::flops_per_sample() const {
  int64_t weights = last_width(config_) * config_.classes;
  for (int64_t i = 0; i < config_.layers; ++i) {
    weights += (i == 0 ? pixels_of(config_) : config_.width) * config_.width;
  }
  return 6.0 * static_cast<double>(weights);
}

}  // namespace tandem

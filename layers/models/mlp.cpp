#include "layers/models/mlp.h"

#include <cmath>

#include "layers/activation/activation.h"

namespace tandem {

namespace {

Initializer he_normal(int64_t in) {
  return Initializer::normal(std::sqrt(2.0 / static_cast<double>(in)));
}

// The width of the pixels, of each hidden layer, and of the logits.
std::vector<int64_t> widths_of(const MlpConfig& config) {
  const int64_t pixels = config.image_height * config.image_width * config.channels;
  if (pixels <= 0 || config.layers < 0 || config.width <= 0 || config.classes <= 0) {
    fail(ExitCode::kConfig, "model: mlp needs images, model.width >= 1 and model.layers >= 0");
  }
  std::vector<int64_t> widths(static_cast<size_t>(config.layers) + 2, config.width);
  widths.front() = pixels;
  widths.back() = config.classes;
  return widths;
}

// One row for each image.
Variable rows(const Variable& x) {
  const int64_t batch = x.shape()[0];
  return Variable(x.value().reshape({batch, x.elements() / batch}), x.slot());
}

}  // namespace

Mlp::Mlp(const MlpConfig& config) : Mlp(widths_of(config)) {}

Mlp::Mlp(const std::vector<int64_t>& widths)
    : Classifier(widths.back()),
      head_(Linear::classifier("head", widths.end()[-2], widths.back(),
                               he_normal(widths.end()[-2]))) {
  for (size_t i = 0; i + 2 < widths.size(); ++i) {
    layers_.emplace_back(str("layers.", i), widths[i], widths[i + 1], he_normal(widths[i]));
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

}  // namespace tandem

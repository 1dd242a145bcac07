// A multilayer perceptron for images: flattened pixels, hidden layers with ReLU, a linear head.
#pragma once

#include "layers/linear/linear.h"
#include "layers/models/classifier.h"

namespace tandem {

struct MlpConfig {
  int64_t image_height = 0, image_width = 0, channels = 0;  // of the images
  int64_t layers = 0;                                       // hidden layers
  int64_t width = 0;                                        // of each hidden layer
  int64_t classes = 0;
};

// Parameters: layers.N.{weight, bias} and head.{weight, bias}. Weights are initialized from a
// normal distribution with deviation sqrt(2 / inputs) (He et al. 2015, arXiv:1502.01852). There is
// one block for each layer and one for the head. Images [B, H, W, C] give logits [B, columns], as
// classifier.h says.
class Mlp final : public Classifier {
 public:
  // Throws Error(kConfig) for sizes that are not positive.
  explicit Mlp(const MlpConfig& config);

  double flops_per_sample() const override { return ProductFlops()(parameters_of(*this)); }

 private:
  // widths: of the pixels, of each hidden layer, and of the logits
  explicit Mlp(const std::vector<int64_t>& widths);

  std::vector<Linear> layers_;
  Linear head_;
};

}  // namespace tandem

// Residual networks for small images: ResNet-20, 32, 44, 56 (He et al. 2015, arXiv:1512.03385,
// section 4.2).
//
// A 3x3 convolution to 16 channels, three stages of n = (depth - 2) / 6 blocks with 16, 32 and 64
// channels, global average pooling and a linear layer. A stage halves the image at its entry;
// shortcuts have no parameters (option A).
#pragma once

#include <array>
#include <memory>

#include "layers/models/classifier.h"

namespace tandem {

struct ResNetConfig {
  int64_t depth = 20;  // 6n + 2
  int64_t in_channels = 3;
  int64_t height = 32, width = 32;
  int64_t classes = 10;
  // What is wrong with the depth, by the setting's name; empty when nothing is.
  std::vector<std::string> problems() const;
};

// Images [B, H, W, C] give logits [B, classes]. Weights start as He normal by fan-out, the head as
// normal(0.01). Throws Error(kConfig) with the configuration's problems().
std::unique_ptr<Classifier> make_resnet(const ResNetConfig& config);

}  // namespace tandem

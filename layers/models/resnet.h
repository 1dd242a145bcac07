// Residual networks for small images: ResNet-20, 32, 44, 56 (He et al. 2015, arXiv:1512.03385,
// section 4.2).
//
// A 3x3 convolution to 16 channels, then three stages of n = (depth - 2) / 6 blocks with 16, 32 and
// 64 channels, global average pooling and a linear layer. The second and third stage halve the
// image at their entry. Shortcuts have no parameters (option A).
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
  // One message if the depth is invalid, with the setting's name; otherwise empty.
  std::vector<std::string> problems() const;
};

// Images [B, H, W, C] give logits [B, columns], as classifier.h says. Convolution weights are
// initialized as He normal by fan-out, the head's weights from normal(0.01). Throws Error(kConfig)
// with the configuration's problems().
std::unique_ptr<Classifier> make_resnet(const ResNetConfig& config);

}  // namespace tandem

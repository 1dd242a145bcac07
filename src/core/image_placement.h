// How an image is moved on its way into a model.
#pragma once

#include <cstdint>

namespace tandem {

// The image is shifted by whole pixels, with zeros (after normalisation) where it no longer covers
// the output, and then mirrored left to right.
struct ImagePlacement {
  int32_t shift_y = 0;  // output row y shows input row y + shift_y
  int32_t shift_x = 0;
  int32_t flip = 0;  // 1: mirrors after the shift
  bool operator==(const ImagePlacement&) const = default;
};

}  // namespace tandem

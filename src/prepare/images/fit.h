// Images in the size that a model reads.
#pragma once

#include "src/prepare/images/image.h"

namespace tandem {

// The middle of an image, as much of it as has the shape of height x width, scaled to that size;
// an image of this size keeps its pixels. Scaled with the triangle filter that Pillow calls
// bilinear, which is as wide as a pixel of the result, so that small images do not flicker.
// channels: 1 or 3. Colours become grey as the luma of ITU-R BT.601, grey becomes three equal
// colours.
Image fitted(const Image& image, int64_t channels, int64_t height, int64_t width);

}  // namespace tandem

// Images in the size that a model reads.
#pragma once

#include <span>

#include "src/prepare/images/image.h"

namespace tandem {

// Repeats a grey plane three times.
std::vector<uint8_t> grey_to_rgb(std::span<const uint8_t> plane);

// The middle of an image, as much of it as has the shape of height x width, scaled to that size;
// an image of this size keeps its pixels. It is scaled by the triangle filter that Pillow calls
// bilinear, which reaches as far as a pixel of the result, so that no pixel is left out.
// channels: 1 or 3. Colours become grey as the luma of ITU-R BT.601, grey becomes three equal
// colours.
Image fitted(const Image& image, int64_t channels, int64_t height, int64_t width);

}  // namespace tandem

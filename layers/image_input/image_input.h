// From stored pixels to the input of a model: shift, flip, normalisation and conversion.
#pragma once

#include <span>
#include <vector>

#include "src/core/image_placement.h"
#include "src/device/dispatch.h"
#include "src/device/tensor.h"

namespace tandem {

// What each level of each channel becomes, [C, 256]: (level / 255 - mean) / std, computed in f64.
// mean, std: per channel, of pixels scaled to [0, 1].
std::vector<float> values_of_levels(std::span<const double> mean, std::span<const double> std);

// images[b, y, x, c] is the value of pixels[b, c, y + shift_y, x' + shift_x], rounded once, where
// x' is W - 1 - x if the image is flipped and x otherwise; 0 outside of the image. pixels: u8
// [B, C, H, W]; placements: i32 [B, 3], one ImagePlacement each; values: f32 [C, 256]; images: f32,
// bf16 or fp16 [B, H, W, C]; all on the stream's device. Error kInternal for other shapes, or for
// images of 2^31 or more elements.
void image_input(const Stream& stream, const Tensor& pixels, const Tensor& placements,
                 const Tensor& values, const Tensor& images);

namespace kernels {

struct ImageShape {
  int64_t batch, channels, height, width;
};

template <class T>
void image_input(Cuda device, const ImageShape& shape, const uint8_t* pixels,
                 const ImagePlacement* placements, const float* values, T* images);

}  // namespace kernels

}  // namespace tandem

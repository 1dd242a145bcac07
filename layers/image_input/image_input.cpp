#include "layers/image_input/image_input.h"

#include <algorithm>
#include <limits>

#include "src/core/error.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

template <class T>
void image_input(Cpu, const ImageShape& shape, const uint8_t* pixels,
                 const ImagePlacement* placements, const float* values, T* images) {
  const int64_t batch = shape.batch, channels = shape.channels, height = shape.height;
  const int64_t width = shape.width, area = height * width, size = channels * area;
#pragma omp parallel for schedule(static) if (batch * size >= kParallelElements)
  for (int64_t image = 0; image < batch; ++image) {
    const auto [shift_y, shift_x, flip] = placements[image];
    T* out = images + image * size;
    if (shift_y != 0 || shift_x != 0) {
      std::fill_n(out, size, T(0));
    }
    const int64_t x_begin = std::max<int64_t>(0, -shift_x);
    const int64_t x_end = std::min<int64_t>(width, width - shift_x);
    const int64_t y_begin = std::max<int64_t>(0, -shift_y);
    const int64_t y_end = std::min<int64_t>(height, height - shift_y);
    const int64_t first = flip != 0 ? width - 1 - x_begin : x_begin;
    const int64_t step = flip != 0 ? -channels : channels;
    for (int64_t channel = 0; channel < channels; ++channel) {
      const float* value_of = values + channel * 256;
      for (int64_t y = y_begin; y < y_end; ++y) {
        const uint8_t* row = pixels + image * size + channel * area + (y + shift_y) * width;
        T* to = out + (y * width + first) * channels + channel;
        for (int64_t x = x_begin; x < x_end; ++x, to += step) {
          *to = T(value_of[row[x + shift_x]]);
        }
      }
    }
  }
}

}  // namespace kernels

std::vector<float> values_of_levels(std::span<const double> mean, std::span<const double> std) {
  require(mean.size() == std.size(), "values_of_levels: mean and std of different channels");
  std::vector<float> values;
  for (size_t channel = 0; channel < mean.size(); ++channel) {
    for (int level = 0; level < 256; ++level) {
      values.push_back(static_cast<float>((level / 255.0 - mean[channel]) / std[channel]));
    }
  }
  return values;
}

void image_input(const Stream& stream, const Tensor& pixels, const Tensor& placements,
                 const Tensor& values, const Tensor& images) {
  const Shape& from = pixels.shape();
  require(from.rank() == 4 && placements.shape() == Shape{from[0], 3} &&
              values.shape() == Shape{from[1], 256} &&
              images.shape() == Shape{from[0], from[2], from[3], from[1]} &&
              from[1] * from[2] * from[3] <= std::numeric_limits<int32_t>::max(),
          "image_input: pixels ", from, ", placements ", placements.shape(), ", values ",
          values.shape(), ", images ", images.shape());
  const kernels::ImageShape shape{from[0], from[1], from[2], from[3]};
  const Work work = touching(pixels, placements, values, images);
  on_device(stream, work, images.dtype(), [&]<class T>(auto device) {
    kernels::image_input(device, shape, pixels.data<uint8_t>(),
                         reinterpret_cast<const ImagePlacement*>(placements.data<int32_t>()),
                         values.data<float>(), images.data<T>());
  });
}

}  // namespace tandem

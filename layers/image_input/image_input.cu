#include "layers/image_input/image_input.h"
#include "src/device/global.h"
#include "src/kernels/launch.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

// A thread makes all channels of a pixel, so that a warp reads and writes neighbouring ones. Each
// image has blocks of its own.
template <class T>
__global__ void __launch_bounds__(kThreads)
    image_input_kernel(ImageShape s, Global<const uint8_t> pixels,
                       Global<const ImagePlacement> placements, Global<const float> values,
                       Global<T> images) {
  const int height = static_cast<int>(s.height), width = static_cast<int>(s.width);
  const int area = height * width, channels = static_cast<int>(s.channels);
  const unsigned blocks = gridDim.x / static_cast<unsigned>(s.batch), image = blockIdx.x / blocks;
  const int at = static_cast<int>(blockIdx.x % blocks * kThreads + threadIdx.x);
  if (at >= area) {
    return;
  }
  const int64_t first = int64_t{image} * channels * area;
  const ImagePlacement placement = placements.load(image);
  const int column = at % width;
  const int y = at / width + placement.shift_y;
  const int x = (placement.flip != 0 ? width - 1 - column : column) + placement.shift_x;
  const bool inside = y >= 0 && y < height && x >= 0 && x < width;
  for (int channel = 0; channel < channels; ++channel) {
    float value = 0;
    if (inside) {
      const int level = pixels.load(first + channel * area + y * width + x);
      value = values.load(channel * 256 + level);
    }
    images.store(first + at * channels + channel, T(value));
  }
}

}  // namespace

template <class T>
void image_input(Cuda device, const ImageShape& shape, const uint8_t* pixels,
                 const ImagePlacement* placements, const float* values, T* images) {
  const int64_t blocks = shape.batch * blocks_for(shape.height * shape.width, kThreads);
  launch<image_input_kernel<T>>(device, static_cast<unsigned>(blocks), kThreads, 0, shape, pixels,
                                placements, values, images);
}

template void image_input<float>(Cuda, const ImageShape&, const uint8_t*, const ImagePlacement*,
                                 const float*, float*);
template void image_input<Bf16>(Cuda, const ImageShape&, const uint8_t*, const ImagePlacement*,
                                const float*, Bf16*);
template void image_input<Fp16>(Cuda, const ImageShape&, const uint8_t*, const ImagePlacement*,
                                const float*, Fp16*);

}  // namespace tandem::kernels

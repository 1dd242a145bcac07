#include "layers/image_input/image_input.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kChannels = 3;
const std::vector<double> kMean = {0.5, 0.25, 0.125}, kStd = {0.5, 1.0, 0.3};

struct Size {
  int32_t height, width;
};

// Shifts by multiples of `step`, up to one that leaves nothing of the image, mirrored and not.
std::vector<ImagePlacement> placements_of(const Size& size, int32_t step) {
  std::vector<ImagePlacement> all;
  for (int32_t y = -size.height; y <= size.height; y += step) {
    for (int32_t x = -size.width; x <= size.width; x += step) {
      all.push_back({.shift_y = y, .shift_x = x, .flip = 0});
      all.push_back({.shift_y = y, .shift_x = x, .flip = 1});
    }
  }
  return all;
}

// The pixel that the output shows at y, x, or -1 outside of the image.
int64_t pixel_at(const Size& size, const ImagePlacement& placement, int64_t y, int64_t x) {
  const int64_t from_y = y + placement.shift_y;
  const int64_t from_x = (placement.flip != 0 ? size.width - 1 - x : x) + placement.shift_x;
  const bool inside = from_y >= 0 && from_y < size.height && from_x >= 0 && from_x < size.width;
  return inside ? from_y * size.width + from_x : -1;
}

Tensor tensor_of(std::span<const std::byte> bytes, const Shape& shape, DType dtype, Device device) {
  return to_device(Tensor::of(bytes, test_memory(), shape, dtype, MemoryClass::kData), device);
}

void check(const Size& size, const std::vector<ImagePlacement>& placements) {
  const auto images = std::ssize(placements);
  const int64_t area = size.height * size.width;
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < images * kChannels * area; ++i) {
    pixels.push_back(static_cast<uint8_t>(i * 89 % 251));
  }
  const Tensor expected = Tensor::empty(test_memory(), {images, size.height, size.width, kChannels},
                                        DType::kF32, MemoryClass::kData);
  for (int64_t i = 0; i < expected.elements(); ++i) {
    const int64_t channel = i % kChannels, at = i / kChannels % area, image = i / kChannels / area;
    const int64_t pixel = pixel_at(size, placements[image], at / size.width, at % size.width);
    const int64_t plane = (image * kChannels + channel) * area;
    const double level = pixels[plane + std::max(pixel, int64_t{0})];
    const double value = (level / 255.0 - kMean[channel]) / kStd[channel];
    expected.data<float>()[i] = pixel < 0 ? 0.0f : static_cast<float>(value);
  }
  const std::vector<float> values = values_of_levels(kMean, kStd);
  for_each_device([&](Device device) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      const Tensor out = unwritten(expected.shape(), dtype, device);
      image_input(
          test_stream(device),
          tensor_of(std::as_bytes(std::span(pixels)), {images, kChannels, size.height, size.width},
                    DType::kU8, device),
          tensor_of(std::as_bytes(std::span(placements)), {images, 3}, DType::kI32, device),
          tensor_of(std::as_bytes(std::span(values)), {kChannels, 256}, DType::kF32, device), out);
      EXPECT_EQ(values_of(out), values_of(rounded_to(expected, dtype)));
    }
  });
}

TEST(ImageInput, ShiftsFlipsAndNormalises) {
  const Size small{5, 6}, large{40, 17};  // the larger one takes three blocks of a GPU
  check(small, placements_of(small, 1));
  check(large, placements_of(large, 9));
}

TEST(ImageInput, RefusesOtherShapes) {
  const auto tensor = [](const Shape& shape, DType dtype) {
    return Tensor::zeros(test_memory(), shape, dtype, MemoryClass::kData);
  };
  const Tensor pixels = tensor({2, 3, 4, 5}, DType::kU8), values = tensor({3, 256}, DType::kF32);
  const Tensor placements = tensor({2, 3}, DType::kI32), images = tensor({2, 4, 5, 3}, DType::kF32);
  const auto run = [&](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d) {
    return message_of([&] { image_input(test_stream(), a, b, c, d); });
  };
  EXPECT_EQ(run(pixels, placements, values, images), "");
  for (const std::string& message :
       {run(tensor({2, 3, 5, 4}, DType::kU8), placements, values, images),
        run(pixels, tensor({3, 3}, DType::kI32), values, images),
        run(pixels, placements, tensor({1, 256}, DType::kF32), images),
        run(pixels, placements, values, tensor({2, 3, 4, 5}, DType::kF32))}) {
    EXPECT_TRUE(message.starts_with("image_input: pixels [2, 3, ")) << message;
  }
}

}  // namespace
}  // namespace tandem::testing

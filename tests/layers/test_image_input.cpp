#include "layers/image_input/image_input.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kChannels = 3, kHeight = 5, kWidth = 6, kSize = kChannels * kHeight * kWidth;
const std::vector<double> kMean = {0.5, 0.25, 0.125}, kStd = {0.5, 1.0, 0.3};

// Every shift up to one that leaves nothing of the image, mirrored and not.
std::vector<ImagePlacement> all_placements() {
  std::vector<ImagePlacement> all;
  for (int32_t y = -kHeight; y <= kHeight; ++y) {
    for (int32_t x = -kWidth; x <= kWidth; ++x) {
      all.push_back({.shift_y = y, .shift_x = x, .flip = 0});
      all.push_back({.shift_y = y, .shift_x = x, .flip = 1});
    }
  }
  return all;
}

// The pixel that the output shows at y, x, or -1 outside of the image.
int64_t pixel_at(const ImagePlacement& placement, int64_t y, int64_t x) {
  const int64_t from_y = y + placement.shift_y;
  const int64_t from_x = (placement.flip != 0 ? kWidth - 1 - x : x) + placement.shift_x;
  const bool inside = from_y >= 0 && from_y < kHeight && from_x >= 0 && from_x < kWidth;
  return inside ? from_y * kWidth + from_x : -1;
}

Tensor tensor_of(std::span<const std::byte> bytes, const Shape& shape, DType dtype, Device device) {
  return to_device(Tensor::of(bytes, test_memory(), shape, dtype, MemoryClass::kData), device);
}

TEST(ImageInput, ShiftsFlipsAndNormalises) {
  const std::vector<ImagePlacement> placements = all_placements();
  const auto images = std::ssize(placements);
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < images * kSize; ++i) {
    pixels.push_back(static_cast<uint8_t>(i * 89 % 251));
  }
  for_each_device([&](Device device) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      const std::vector<float> values = values_of_levels(kMean, kStd);
      const Tensor out = unwritten({images, kHeight, kWidth, kChannels}, dtype, device);
      image_input(
          test_stream(device),
          tensor_of(std::as_bytes(std::span(pixels)), {images, kChannels, kHeight, kWidth},
                    DType::kU8, device),
          tensor_of(std::as_bytes(std::span(placements)), {images, 3}, DType::kI32, device),
          tensor_of(std::as_bytes(std::span(values)), {kChannels, 256}, DType::kF32, device), out);
      std::vector<double> expected;
      for (int64_t i = 0; i < images * kSize; ++i) {
        const int64_t channel = i % kChannels, at = i / kChannels % (kHeight * kWidth);
        const int64_t image = i / kSize;
        const int64_t pixel = pixel_at(placements[image], at / kWidth, at % kWidth);
        const double level =
            pixels[image * kSize + channel * kHeight * kWidth + std::max(pixel, int64_t{0})];
        const double value = (level / 255.0 - kMean[channel]) / kStd[channel];
        expected.push_back(pixel < 0 ? 0.0 : static_cast<float>(value));
      }
      Tensor wide = Tensor::empty(test_memory(), out.shape(), DType::kF32, MemoryClass::kData);
      std::ranges::copy(expected, wide.data<float>());
      EXPECT_EQ(values_of(out), values_of(rounded_to(wide, dtype)));
    }
  });
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

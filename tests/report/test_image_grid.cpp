#include <gtest/gtest.h>
#include <png.h>

#include "src/report/writers/image_grid.h"

namespace tandem {
namespace {

struct Decoded {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb{};
  std::vector<int> at(int64_t y, int64_t x) const {
    const auto pixel = rgb.begin() + (y * width + x) * 3;
    return {pixel, pixel + 3};
  }
};

Decoded decode(const std::string& png) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&image, png.data(), png.size()), 0);
  image.format = PNG_FORMAT_RGB;
  Decoded decoded{.height = image.height, .width = image.width};
  decoded.rgb.resize(PNG_IMAGE_SIZE(image));
  EXPECT_NE(png_image_finish_read(&image, nullptr, decoded.rgb.data(), 0, nullptr), 0);
  return decoded;
}

// Ten images of 1 x 2 pixels; image i has the grey levels 10 i and 10 i + 1. The last is wrong.
TEST(ImageGrid, RowsOfEightInFrames) {
  PredictedImages images{.height = 1, .width = 2, .channels = 1};
  for (uint8_t i = 0; i < 10; ++i) {
    images.pixels.insert(images.pixels.end(),
                         {static_cast<uint8_t>(10 * i), static_cast<uint8_t>(10 * i + 1)});
    images.predicted.emplace_back("cat");
    images.truth.emplace_back(i == 9 ? "dog" : "cat");
  }
  const Picture picture = grid_of(images);
  const Decoded decoded = decode(picture.png);
  EXPECT_EQ(std::pair(decoded.height, decoded.width), std::pair(picture.height, picture.width));
  EXPECT_EQ(std::pair(picture.height, picture.width), std::pair(int64_t{2 * 5}, int64_t{8 * 6}));
  EXPECT_EQ(decoded.at(2, 2), (std::vector{0, 0, 0}));
  EXPECT_EQ(decoded.at(2, 6 * 7 + 3), (std::vector{71, 71, 71}));
  EXPECT_EQ(decoded.at(5 + 2, 6 + 2), (std::vector{90, 90, 90}));
  EXPECT_EQ(decoded.at(5 + 2, 0), (std::vector{0, 160, 0}));      // the ninth is right
  EXPECT_EQ(decoded.at(5 + 1, 6 + 2), (std::vector{220, 0, 0}));  // the tenth is wrong
  EXPECT_EQ(decoded.at(9, 47), (std::vector{255, 255, 255}));     // no image
  EXPECT_TRUE(table_of(images).ends_with("| 2 | 1 | cat | cat |\n| 2 | 2 | cat | dog |\n"));
}

TEST(ImageGrid, ColoursKeepTheirOrder) {
  const PredictedImages images{.height = 1,
                               .width = 1,
                               .channels = 3,
                               .pixels = {1, 2, 3},
                               .predicted = {"a"},
                               .truth = {"a"}};
  EXPECT_EQ(decode(grid_of(images).png).at(2, 2), (std::vector{1, 2, 3}));
}

}  // namespace
}  // namespace tandem

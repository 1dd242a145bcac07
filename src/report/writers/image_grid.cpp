#include "src/report/writers/image_grid.h"

#include <png.h>

#include <algorithm>
#include <array>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr int64_t kColumns = 8, kFrame = 2;  // pixels of the frame on each side
constexpr std::array<uint8_t, 3> kRight = {0, 160, 0}, kWrong = {220, 0, 0};

std::string encode(const std::vector<uint8_t>& rgb, int64_t height, int64_t width) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = 0;
  std::string png;
  const auto write = [&](void* memory) {
    if (png_image_write_to_memory(&image, memory, &bytes, 0, rgb.data(), 0, nullptr) == 0) {
      fail(ExitCode::kInternal, "a picture of ", width, " x ", height, ": ", image.message);
    }
  };
  write(nullptr);  // tells the size
  png.resize(bytes);
  write(png.data());
  png.resize(bytes);
  return png;
}

}  // namespace

Picture grid_of(const PredictedImages& images) {
  const auto count = static_cast<int64_t>(images.predicted.size());
  const int64_t columns = std::min(count, kColumns), rows = (count + columns - 1) / columns;
  const int64_t cell_height = images.height + 2 * kFrame, cell_width = images.width + 2 * kFrame;
  const int64_t height = rows * cell_height, width = columns * cell_width;
  std::vector<uint8_t> rgb(static_cast<size_t>(height * width * 3), 255);
  for (int64_t i = 0; i < count; ++i) {
    const std::array<uint8_t, 3>& frame = images.predicted[i] == images.truth[i] ? kRight : kWrong;
    for (int64_t y = 0; y < cell_height; ++y) {
      for (int64_t x = 0; x < cell_width; ++x) {
        const int64_t top = y - kFrame, left = x - kFrame;
        const bool is_frame = top < 0 || left < 0 || top >= images.height || left >= images.width;
        uint8_t* pixel =
            &rgb[((i / columns * cell_height + y) * width + i % columns * cell_width + x) * 3];
        for (int64_t c = 0; c < 3; ++c) {
          const int64_t channel = std::min(c, images.channels - 1);
          pixel[c] = is_frame ? frame[c]
                              : images.pixels[((i * images.height + top) * images.width + left) *
                                                  images.channels +
                                              channel];
        }
      }
    }
  }
  return {.height = height, .width = width, .png = encode(rgb, height, width)};
}

std::string table_of(const PredictedImages& images) {
  std::string text = "| row | column | predicted | truth |\n|---|---|---|---|\n";
  for (size_t i = 0; i < images.predicted.size(); ++i) {
    text += str("| ", i / kColumns + 1, " | ", i % kColumns + 1, " | ", images.predicted[i], " | ",
                images.truth[i], " |\n");
  }
  return text;
}

}  // namespace tandem

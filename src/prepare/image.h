// Decoded images.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct Image {
  int64_t channels = 0;  // 1 (grey) or 3 (RGB)
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // [C, H, W]
};

// Decodes a JPEG or PNG file, told apart by their first bytes. Alpha is dropped, palettes become
// RGB, 16-bit samples keep their high byte. Returns false with the reason when the file is corrupt,
// cut short, or of another format; JPEG counts as corrupt as soon as the decoder has to guess.
bool decode_image(std::string_view file, Image* image, std::string* problem);

// Reorders [H, W, C] samples to the [C, H, W] of an image.
void planes_from_interleaved(const uint8_t* samples, Image* image);

}  // namespace tandem

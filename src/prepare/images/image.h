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
// RGB, 16-bit samples keep their high byte. Returns the problem, or nothing when there is none. It
// is a problem when the file is corrupt, cut short, or of another format; JPEG counts as corrupt as
// soon as the decoder has to guess.
std::string decode_image(std::string_view file, Image* image);

}  // namespace tandem

// The body of fuzz_jpeg and fuzz_png, which begin with different inputs.
#pragma once

#include "src/prepare/images/image.h"
#include "tests/fuzz/support/fuzz.h"

inline int decode_one_input(const uint8_t* data, size_t size) {
  tandem::Image image;
  if (tandem::decode_image(tandem::fuzz::text_of(data, size), &image).empty()) {
    tandem::fuzz::check(image.channels == 1 || image.channels == 3, "images are grey or RGB");
    tandem::fuzz::check(image.height > 0 && image.width > 0, "an image has pixels");
    tandem::fuzz::check(
        static_cast<int64_t>(image.pixels.size()) == image.channels * image.height * image.width,
        "each pixel is there");
  }
  return 0;
}

// From stored pixels to network input: normalisation, and the random crop and flip of training.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

// How an image is moved. It is shifted by whole pixels, with zeros (after normalisation) where it
// no longer covers the output, and then mirrored left to right.
struct CropAndFlip {
  int64_t shift_y = 0;  // output row y shows input row y + shift_y
  int64_t shift_x = 0;
  bool flip = false;  // mirrors after the shift
};

// Padding of four pixels on each side, a random crop of the original size, and a flip with
// probability 1/2 (He et al. 2016, "Deep residual learning", section 4.2). A pure function of its
// arguments.
CropAndFlip random_crop_and_flip(uint64_t seed, int64_t epoch, int64_t position);

class ImageNormalizer {
 public:
  // mean, std: per channel, of pixels scaled to [0, 1].
  ImageNormalizer(int64_t height, int64_t width, const std::vector<double>& mean,
                  const std::vector<double>& std);

  // pixels: [C, H, W]; out: [H, W, C], (pixel / 255 - mean) / std.
  void normalize(std::span<const uint8_t> pixels, const CropAndFlip& crop,
                 std::span<float> out) const;

 private:
  int64_t height_;
  int64_t width_;
  std::vector<std::array<float, 256>> value_of_pixel_;  // [C]
};

}  // namespace tandem

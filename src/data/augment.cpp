#include "src/data/augment.h"

#include <algorithm>

#include "src/core/error.h"
#include "src/core/rng.h"

namespace tandem {
namespace {

constexpr int64_t kPadding = 4;

// Uniform in [-kPadding, kPadding].
int64_t shift_from(uint32_t word) {
  return static_cast<int64_t>((uint64_t{word} * (2 * kPadding + 1)) >> 32) - kPadding;
}

}  // namespace

CropAndFlip random_crop_and_flip(uint64_t seed, int64_t epoch, int64_t position) {
  const PhiloxCounter words =
      random_words(random_key(seed, RandomUse::kAugment), static_cast<uint64_t>(position),
                   static_cast<uint32_t>(epoch));
  return {shift_from(words[0]), shift_from(words[1]), (words[2] & 1u) != 0};
}

ImageNormalizer::ImageNormalizer(int64_t height, int64_t width, const std::vector<double>& mean,
                                 const std::vector<double>& std)
    : height_(height), width_(width), value_of_pixel_(mean.size()) {
  for (size_t channel = 0; channel < mean.size(); ++channel) {
    for (int pixel = 0; pixel < 256; ++pixel) {
      value_of_pixel_[channel][static_cast<size_t>(pixel)] =
          static_cast<float>((pixel / 255.0 - mean[channel]) / std[channel]);
    }
  }
}

void ImageNormalizer::normalize(std::span<const uint8_t> pixels, const CropAndFlip& crop,
                                std::span<float> out) const {
  const auto channels = std::ssize(value_of_pixel_);
  const int64_t area = height_ * width_;
  require(std::ssize(pixels) == channels * area && out.size() == pixels.size(),
          "ImageNormalizer: wrong image size");
  const bool moved = crop.shift_y != 0 || crop.shift_x != 0;
  if (moved) {
    std::fill(out.begin(), out.end(), 0.0f);
  }
  const int64_t x_begin = std::max<int64_t>(0, -crop.shift_x);
  const int64_t x_end = std::min(width_, width_ - crop.shift_x);
  const int64_t y_begin = std::max<int64_t>(0, -crop.shift_y);
  const int64_t y_end = std::min(height_, height_ - crop.shift_y);
  const int64_t step = crop.flip ? -channels : channels;
  for (int64_t channel = 0; channel < channels; ++channel) {
    const std::array<float, 256>& value_of = value_of_pixel_[static_cast<size_t>(channel)];
    for (int64_t y = y_begin; y < y_end; ++y) {
      const uint8_t* row = pixels.data() + channel * area + (y + crop.shift_y) * width_;
      const int64_t first = crop.flip ? width_ - 1 - x_begin : x_begin;
      float* to = out.data() + (y * width_ + first) * channels + channel;
      for (int64_t x = x_begin; x < x_end; ++x, to += step) {
        *to = value_of[row[x + crop.shift_x]];
      }
    }
  }
}

}  // namespace tandem

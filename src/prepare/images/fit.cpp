#include "src/prepare/images/fit.h"

#include <algorithm>
#include <cmath>

namespace tandem {

namespace {

// What a pixel of the result is made of.
struct Mix {
  int64_t first;
  std::vector<double> weights;  // of the pixels from `first`; their sum is 1
};

// `count` pixels of the result cover [start, start + length) of `size` pixels.
std::vector<Mix> mixes(int64_t size, double start, double length, int64_t count) {
  const double scale = length / static_cast<double>(count), reach = std::max(scale, 1.0);
  std::vector<Mix> all;
  for (int64_t i = 0; i < count; ++i) {
    const double middle = start + (static_cast<double>(i) + 0.5) * scale;
    const auto nearest = [&](double at) {
      return std::clamp<int64_t>(static_cast<int64_t>(std::floor(at + 0.5)), 0, size);
    };
    Mix mix{nearest(middle - reach), {}};
    double sum = 0;
    for (int64_t pixel = mix.first; pixel < nearest(middle + reach); ++pixel) {
      const double distance = std::abs(static_cast<double>(pixel) + 0.5 - middle) / reach;
      mix.weights.push_back(std::max(1 - distance, 0.0));
      sum += mix.weights.back();
    }
    for (double& weight : mix.weights) {
      weight /= sum;
    }
    all.push_back(std::move(mix));
  }
  return all;
}

// Lines of pixels: their first pixels are `line` apart, and those of a line `stride`.
struct Lines {
  int64_t count, line, stride;
};

void scale(const uint8_t* from, const Lines& in, const std::vector<Mix>& mixes, uint8_t* to,
           const Lines& out) {
  for (int64_t l = 0; l < in.count; ++l) {
    for (size_t i = 0; i < mixes.size(); ++i) {
      double value = 0.5;  // rounds
      for (size_t w = 0; w < mixes[i].weights.size(); ++w) {
        value += mixes[i].weights[w] * from[l * in.line + (mixes[i].first + w) * in.stride];
      }
      to[l * out.line + i * out.stride] = static_cast<uint8_t>(value);
    }
  }
}

Image with_channels(const Image& image, int64_t channels) {
  const int64_t area = image.height * image.width;
  if (channels == 3) {
    return {channels, image.height, image.width, grey_to_rgb(image.pixels)};
  }
  Image result{channels, image.height, image.width, {}};
  const uint8_t *red = image.pixels.data(), *green = red + area, *blue = green + area;
  for (int64_t i = 0; i < area; ++i) {
    result.pixels.push_back(
        static_cast<uint8_t>(std::lround(0.299 * red[i] + 0.587 * green[i] + 0.114 * blue[i])));
  }
  return result;
}

}  // namespace

std::vector<uint8_t> grey_to_rgb(std::span<const uint8_t> plane) {
  std::vector<uint8_t> planes;
  planes.reserve(plane.size() * 3);
  for (int channel = 0; channel < 3; ++channel) {
    planes.insert(planes.end(), plane.begin(), plane.end());
  }
  return planes;
}

Image fitted(const Image& image, int64_t channels, int64_t height, int64_t width) {
  if (image.channels != channels) {
    return fitted(with_channels(image, channels), channels, height, width);
  }
  if (image.height == height && image.width == width) {
    return image;
  }
  const double shrink = std::min(static_cast<double>(image.height) / static_cast<double>(height),
                                 static_cast<double>(image.width) / static_cast<double>(width));
  const auto covering = [&](int64_t size, int64_t count) {
    const double length = shrink * static_cast<double>(count);
    return mixes(size, (static_cast<double>(size) - length) / 2, length, count);
  };
  const std::vector<Mix> columns = covering(image.width, width);
  std::vector<Mix> rows = covering(image.height, height);
  // Only `used` rows are scaled, because a narrow image may have a million others.
  const int64_t first = rows.front().first;
  const int64_t used = rows.back().first + std::ssize(rows.back().weights) - first;
  for (Mix& row : rows) {
    row.first -= first;
  }
  Image result{channels, height, width, {}};
  result.pixels.resize(static_cast<size_t>(channels * height * width));
  std::vector<uint8_t> narrow(static_cast<size_t>(used * width));
  for (int64_t c = 0; c < channels; ++c) {
    scale(image.pixels.data() + (c * image.height + first) * image.width, {used, image.width, 1},
          columns, narrow.data(), {used, width, 1});
    scale(narrow.data(), {width, 1, width}, rows, result.pixels.data() + c * height * width,
          {width, 1, width});
  }
  return result;
}

}  // namespace tandem

// Images with what a model took them for, as one picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

struct PredictedImages {
  int64_t height = 0, width = 0, channels = 0;    // channels: 1 or 3
  std::vector<uint8_t> pixels{};                  // [images, height, width, channels]
  std::vector<std::string> predicted{}, truth{};  // names of classes, by image
};

// A PNG file of RGB: rows of up to eight images, each in a frame that is green where the
// prediction is right and red where it is not.
struct Picture {
  int64_t height = 0, width = 0;
  std::string png{};
};
Picture grid_of(const PredictedImages& images);

// A Markdown table with a line for each image: row and column in the grid, prediction, truth.
std::string table_of(const PredictedImages& images);

}  // namespace tandem

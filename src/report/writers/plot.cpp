#include "src/report/writers/plot.h"

#include <cmath>

#include "src/core/error.h"

namespace tandem {

namespace {

// Bits of U+2800 + bits, by row (from the top) and column.
constexpr int kDots[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

// UTF-8 of U+2800 + dots; a blank for no dot.
std::string braille(int dots) {
  if (dots == 0) {
    return " ";
  }
  return {static_cast<char>(0xE2), static_cast<char>(0xA0 + (dots >> 6)),
          static_cast<char>(0x80 + (dots & 0x3F))};
}

}  // namespace

std::vector<std::string> braille_plot(const std::vector<std::pair<double, double>>& points,
                                      const PlotArea& area) {
  require(area.columns > 0 && area.rows > 0, "braille_plot: no area");
  const int width = 2 * area.columns, height = 4 * area.rows;
  std::vector<std::vector<int>> dots(static_cast<size_t>(area.rows),
                                     std::vector<int>(static_cast<size_t>(area.columns)));
  const auto dot = [&](int column, double y) {
    const double span = area.top > area.bottom ? area.top - area.bottom : 1;
    const auto row = static_cast<int>(std::lround((area.top - y) / span * (height - 1)));
    if (column >= 0 && column < width && row >= 0 && row < height) {
      dots[row / 4][column / 2] |= kDots[row % 4][column % 2];
    }
  };
  const auto column_of = [&](double x) {
    const double span = area.right > area.left ? area.right - area.left : 1;
    return static_cast<int>(std::lround((x - area.left) / span * (width - 1)));
  };
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [x, y] = points[i];
    dot(column_of(x), y);
    if (i > 0) {
      const auto& [before_x, before_y] = points[i - 1];
      const int first = column_of(before_x), last = column_of(x);
      for (int column = first + 1; column < last; ++column) {
        dot(column, before_y + (y - before_y) * (column - first) / (last - first));
      }
    }
  }
  std::vector<std::string> lines;
  for (const std::vector<int>& row : dots) {
    std::string line;
    for (const int bits : row) {
      line += braille(bits);
    }
    lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  return lines;
}

}  // namespace tandem

// Curves in a terminal, in braille characters: each shows 2 x 4 points.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tandem {

struct PlotArea {
  double left = 0, right = 1;  // x of the first and the last column of points
  double bottom = 0, top = 1;  // y of the lowest and the highest row of points
  int columns = 60, rows = 3;  // in characters
};

// The curve through `points` (x, y), as `rows` lines of UTF-8 text without their trailing blanks.
// Parts outside the area are left out. A column of points that lies between two of `points` gets
// the height of the straight line between them. x must not fall.
std::vector<std::string> braille_plot(const std::vector<std::pair<double, double>>& points,
                                      const PlotArea& area);

}  // namespace tandem

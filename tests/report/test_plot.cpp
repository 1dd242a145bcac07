#include <gtest/gtest.h>

#include "src/report/writers/plot.h"

namespace tandem {
namespace {

using Points = std::vector<std::pair<double, double>>;

TEST(Plot, AFallingLineFillsItsDiagonal) {
  // Two characters are 4 x 4 points; U+2811 has the dots of rows 0 and 1, U+2884 those of 2 and 3.
  const PlotArea area{.left = 0, .right = 3, .bottom = 0, .top = 3, .columns = 2, .rows = 1};
  EXPECT_EQ(braille_plot({{0, 3}, {3, 0}}, area), (std::vector<std::string>{"\u2811\u2884"}));
  EXPECT_EQ(braille_plot({{0, 3}, {1, 2}, {2, 1}, {3, 0}}, area),
            (std::vector<std::string>{"\u2811\u2884"}));
}

TEST(Plot, BlanksAtTheEndsOfLinesAreLeftOut) {
  const PlotArea area{.left = 0, .right = 7, .bottom = 0, .top = 7, .columns = 4, .rows = 2};
  EXPECT_EQ(braille_plot({{0, 7}, {7, 0}}, area),
            (std::vector<std::string>{"\u2811\u2884", "  \u2811\u2884"}));
  EXPECT_EQ(braille_plot({}, area), (std::vector<std::string>{"", ""}));
}

TEST(Plot, PointsOutsideAreLeftOut) {
  const PlotArea area{.left = 0, .right = 3, .bottom = 0, .top = 3, .columns = 2, .rows = 1};
  EXPECT_EQ(braille_plot({{-5, 1}, {9, 9}}, area).size(), 1u);
  EXPECT_EQ(braille_plot({{0, 9}}, area), (std::vector<std::string>{""}));
}

TEST(Plot, AnAreaWithoutHeightOrWidth) {
  const PlotArea area{.left = 2, .right = 2, .bottom = 5, .top = 5, .columns = 1, .rows = 1};
  EXPECT_EQ(braille_plot({{2, 5}}, area), (std::vector<std::string>{"\u2801"}));
}

}  // namespace
}  // namespace tandem

#include <gtest/gtest.h>

#include "src/settings/step_ranges.h"

namespace tandem {
namespace {

// The steps up to 12 that the text names.
std::vector<int64_t> steps_in(std::string_view text) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; step <= 12; ++step) {
    if (StepRanges::parse(text).value().contains(step)) {
      steps.push_back(step);
    }
  }
  return steps;
}

TEST(StepRanges, NameSteps) {
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(steps_in(""), Steps());
  EXPECT_EQ(steps_in("7"), Steps{7});
  EXPECT_EQ(steps_in("3-5"), (Steps{3, 4, 5}));
  EXPECT_EQ(steps_in("9,3-4,4-5,12-9223372036854775807"), (Steps{3, 4, 5, 9, 12}));
}

TEST(StepRanges, OtherTextIsRefused) {
  for (const char* text :
       {"0", "-", "-3", "3-", "5-3", "3-5-7", "3,", ",3", "3,,5", "3 - 5", " 3", "a", "3-b", "+3",
        "3.5", "0-5", "3--5", "9223372036854775808", "3-9223372036854775808"}) {
    EXPECT_FALSE(StepRanges::parse(text)) << text;
  }
}

}  // namespace
}  // namespace tandem

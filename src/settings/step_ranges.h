// Steps that a user names: "7", "3-5" or "3-5,9". The first step is 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

class StepRanges {
 public:
  // Nothing if the text is not of this form. An empty text names no step.
  static std::optional<StepRanges> parse(std::string_view text);

  bool contains(int64_t step) const;
  int64_t count() const;  // of steps; one that is named twice counts twice
  // First and last step of each range.
  const std::vector<std::pair<int64_t, int64_t>>& all() const { return ranges_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

}  // namespace tandem

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

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // first and last step of each
};

}  // namespace tandem

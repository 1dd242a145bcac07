#include "src/settings/step_ranges.h"

#include <algorithm>

#include "src/core/parse_number.h"

namespace tandem {

std::optional<StepRanges> StepRanges::parse(std::string_view text) {
  StepRanges steps;
  for (bool more = !text.empty(); more;) {
    const size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
    const size_t dash = range.find('-');
    const auto first = parse_number<int64_t>(range.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : parse_number<int64_t>(range.substr(dash + 1));
    if (!first || !last || *first < 1 || *first > *last) {
      return std::nullopt;
    }
    steps.ranges_.emplace_back(*first, *last);
  }
  return steps;
}

int64_t StepRanges::count() const {
  int64_t count = 0;
  for (const auto& [first, last] : ranges_) {
    count += last - first + 1;
  }
  return count;
}

bool StepRanges::contains(int64_t step) const {
  return std::ranges::any_of(ranges_, [&](const std::pair<int64_t, int64_t>& range) {
    return range.first <= step && step <= range.second;
  });
}

}  // namespace tandem

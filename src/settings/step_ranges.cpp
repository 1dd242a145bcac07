#include "src/settings/step_ranges.h"

#include <algorithm>
#include <charconv>

namespace tandem {

namespace {

std::optional<int64_t> step_in(std::string_view text) {
  int64_t step = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, step);
  return error == std::errc() && last == end && step > 0 ? std::optional(step) : std::nullopt;
}

}  // namespace

std::optional<StepRanges> StepRanges::parse(std::string_view text) {
  StepRanges steps;
  for (bool more = !text.empty(); more;) {
    const size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text.remove_prefix(more ? comma + 1 : text.size());
    const size_t dash = range.find('-');
    const std::optional<int64_t> first = step_in(range.substr(0, dash));
    const std::optional<int64_t> last =
        dash == std::string_view::npos ? first : step_in(range.substr(dash + 1));
    if (!first || !last || *first > *last) {
      return std::nullopt;
    }
    steps.ranges_.emplace_back(*first, *last);
  }
  return steps;
}

bool StepRanges::contains(int64_t step) const {
  return std::ranges::any_of(ranges_, [&](const std::pair<int64_t, int64_t>& range) {
    return range.first <= step && step <= range.second;
  });
}

}  // namespace tandem

// A contiguous range of element numbers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

// Elements [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// The elements that are in both ranges; begin == end when there are none.
inline Range intersection(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace tandem

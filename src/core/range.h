// A contiguous range of element numbers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/core/host_device.h"

namespace tandem {

// Elements [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  TANDEM_HOST_DEVICE int64_t count() const { return end - begin; }
  TANDEM_HOST_DEVICE bool has(int64_t i) const { return begin <= i && i < end; }
  bool operator==(const Range&) const = default;
};

// The elements that are in both ranges; begin == end when there are none.
inline Range intersection(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace tandem

#include "src/trace/trace.h"

#include <algorithm>
#include <cmath>

namespace tandem {

int64_t Trace::by_rank_0(int64_t time) const {
  const auto length = static_cast<double>(last.at - first.at);
  const double part =
      length > 0 ? std::clamp(static_cast<double>(time - first.at) / length, 0.0, 1.0) : 0;
  return time + first.offset + std::llround(part * static_cast<double>(last.offset - first.offset));
}

}  // namespace tandem

#include "src/trace/trace.h"

#include <cmath>

namespace tandem {

int64_t Trace::by_rank_0(int64_t time) const {
  const double length = static_cast<double>(last.at - first.at);
  const double part = length > 0 ? static_cast<double>(time - first.at) / length : 0;
  return time + first.offset + std::llround(part * static_cast<double>(last.offset - first.offset));
}

}  // namespace tandem

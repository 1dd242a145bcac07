// Sliding windows on the CPU.
#include <algorithm>

#include "layers/attention/attention.h"

namespace tandem::kernels {

void limit_to_window(Cpu, const int32_t* positions, int32_t* seen, const AttentionSizes& sizes,
                     int64_t window) {
  for (int64_t i = 0; i < sizes.batch * sizes.length; ++i) {
    const int64_t before = positions ? positions[i] : i % sizes.length;
    seen[i] = static_cast<int32_t>(std::min(before, window - 1));
  }
}

}  // namespace tandem::kernels

#include "src/train/gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "src/core/gemm.h"

namespace tandem {

double measure_gemm_rate() {
  constexpr int64_t kSize = 1024;
  const std::vector<float> a(kSize * kSize, 1.0f), b(kSize * kSize, 1.0f);
  std::vector<float> c(kSize * kSize);
  double best_s = 1e9;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    gemm<float>(Cpu{}, Transpose::kNo, Transpose::kYes, kSize, kSize, kSize, 1, a.data(), kSize,
                b.data(), kSize, 0, c.data(), kSize);
    best_s = std::min(
        best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * kSize * kSize * kSize / best_s;
}

}  // namespace tandem

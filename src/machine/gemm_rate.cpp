#include <algorithm>
#include <chrono>

#include "src/core/error.h"
#include "src/device/device.h"
#include "src/machine/machine.h"
#include "src/product/product.h"

namespace tandem {

double measure_gemm_rate() {
  constexpr int64_t kSize = 1024;
  const Stream stream = Stream::compute(Device::kCpu);
  Memory memory(stream);
  const auto matrix = [&] {
    return Tensor::zeros(memory, {kSize, kSize}, DType::kF32, MemoryClass::kWorkspace);
  };
  const Product product{.m = kSize,
                        .n = kSize,
                        .k = kSize,
                        .a = {.data = matrix()},
                        .b = {.data = matrix(), .transposed = true},
                        .d = {.data = matrix()}};
  double best_s = 1e9;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    multiply(stream, product);
    best_s = std::min(
        best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * kSize * kSize * kSize / best_s;
}

}  // namespace tandem

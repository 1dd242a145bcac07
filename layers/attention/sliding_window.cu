// Sliding windows on a GPU.
#include "layers/attention/attention.h"
#include "src/device/global.h"
#include "src/kernels/launch.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    limit_to_window_kernel(Global<const int32_t> positions, Global<int32_t> seen, int64_t n,
                           int64_t length, int64_t window) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) {
    const int64_t before = positions ? positions.load(i) : i % length;
    seen.store(i, static_cast<int32_t>(min(before, window - 1)));
  }
}

}  // namespace

void limit_to_window(Cuda device, const int32_t* positions, int32_t* seen,
                     const AttentionSizes& sizes, int64_t window) {
  const int64_t n = sizes.batch * sizes.length;
  if (n > 0) {
    launch<limit_to_window_kernel>(device, blocks_for(n, kThreads), kThreads, 0, positions, seen, n,
                                   sizes.length, window);
  }
}

}  // namespace tandem::kernels

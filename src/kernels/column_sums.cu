#include "src/device/global.h"
#include "src/kernels/column_sums.cuh"

namespace tandem {

namespace {

__global__ void __launch_bounds__(kTotalThreads)
    add_partial_rows_kernel(Global<const float> partial, int64_t count, int64_t columns,
                            Global<float> total, float beta) {
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  const bool used = column < columns;
  const double sum = column_total(
      used ? count : 0, [&](int64_t i) { return double{partial.load(i * columns + column)}; });
  if (used && threadIdx.x < kWarp) {
    total.store(column, static_cast<float>(sum) + (beta == 0 ? 0 : beta * total.load(column)));
  }
}

}  // namespace

void add_partial_rows(Cuda device, const float* partial, int64_t count, int64_t columns,
                      float* total, float beta) {
  launch<add_partial_rows_kernel>(device, blocks_for(columns, kWarp), kTotalThreads, 0, partial,
                                  count, columns, total, beta);
}

}  // namespace tandem

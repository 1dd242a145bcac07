#include "src/kernels/column_sums.h"

#include "src/kernels/map.h"

namespace tandem::kernels {

int64_t row_chunks(Device device, int64_t rows, int64_t columns) {
  return device == Device::kCpu ? 1 : ColumnChunks(rows, columns).chunks;
}

template <class T>
void sum_rows(Cpu, const T* matrix, Wide<T>* partial, int64_t rows, int64_t columns) {
  constexpr int64_t kStrip = 64;  // columns summed together: four cache lines of f32
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
  for (int64_t first = 0; first < columns; first += kStrip) {
    const int64_t count = std::min(kStrip, columns - first);
    Wide<T> total[kStrip] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = matrix + r * columns + first;
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        total[j] += row[j];
      }
    }
    std::copy_n(total, count, partial + first);
  }
}

template <class W>
void add_partial_rows(Cpu, std::span<const PartialRows<W>> sums) {
  for (const PartialRows<W>& sum : sums) {
    if (sum.beta == W(0)) {
      std::fill_n(sum.total, sum.columns, W(0));
    }
    for (int64_t chunk = 0; chunk < sum.chunks; ++chunk) {
#pragma omp simd
      for (int64_t j = 0; j < sum.columns; ++j) {
        sum.total[j] += sum.partial[chunk * sum.columns + j];
      }
    }
  }
}

template void sum_rows<float>(Cpu, const float*, float*, int64_t, int64_t);
template void sum_rows<double>(Cpu, const double*, double*, int64_t, int64_t);
template void sum_rows<Bf16>(Cpu, const Bf16*, float*, int64_t, int64_t);
template void sum_rows<Fp16>(Cpu, const Fp16*, float*, int64_t, int64_t);
template void add_partial_rows<float>(Cpu, std::span<const PartialRows<float>>);
template void add_partial_rows<double>(Cpu, std::span<const PartialRows<double>>);

}  // namespace tandem::kernels

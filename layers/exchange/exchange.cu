#include "layers/exchange/exchange.h"
#include "src/kernels/pack.cuh"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

namespace {

template <int kWidth, class T>
__global__ void __launch_bounds__(kMatrixThreads)
    add_row_parts_kernel(int64_t parts, int64_t rows, int64_t columns, Global<const T> from,
                         Global<const T> bias, Global<T> to) {
  for_matrix<kWidth>(rows, columns, [&](int64_t row, int64_t j) {
    float sums[kWidth];
    load_pack(from, row * columns + j, sums);
#pragma unroll 1
    for (int64_t part = 1; part < parts; ++part) {
      float values[kWidth];
      load_pack(from, (part * rows + row) * columns + j, values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        sums[k] += values[k];
      }
    }
    if (bias) {
      float values[kWidth];
      load_pack(bias, j, values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        sums[k] += values[k];
      }
    }
    store_pack(to, row * columns + j, sums);
  });
}

}  // namespace

template <class T>
void add_row_parts(Cuda device, int64_t parts, int64_t rows, int64_t columns, const T* from,
                   const T* bias, T* to) {
  if (rows * columns == 0) {
    return;
  }
  with_pack<T>(packs_fit(columns, from, bias, to), [&]<int kWidth>() {
    launch<add_row_parts_kernel<kWidth, T>>(device, matrix_grid(rows, columns, kWidth),
                                            matrix_block(), 0, parts, rows, columns, from, bias,
                                            to);
  });
}

template void add_row_parts<float>(Cuda, int64_t, int64_t, int64_t, const float*, const float*,
                                   float*);
template void add_row_parts<Bf16>(Cuda, int64_t, int64_t, int64_t, const Bf16*, const Bf16*, Bf16*);
template void add_row_parts<Fp16>(Cuda, int64_t, int64_t, int64_t, const Fp16*, const Fp16*, Fp16*);

}  // namespace tandem::kernels

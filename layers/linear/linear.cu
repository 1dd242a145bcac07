#include "layers/linear/linear.h"
#include "src/kernels/column_sums.cuh"
#include "src/kernels/sigmoid.cuh"

namespace tandem::kernels {

namespace {

template <class T, int kColumns>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    gelu_gradient_kernel(ColumnGrid grid, Global<const T> dy, Global<const T> gelu_input,
                         Global<T> dx, Global<float> partial) {
  const ColumnWalk walk(grid, kColumns);
  float total[kColumns] = {};
  for (int64_t row = walk.first; walk.column < grid.columns && row < walk.last; row += walk.step) {
    const int64_t i = row * grid.columns + walk.column;
    float gradient[kColumns], input[kColumns];
    load_pack(dy, i, gradient);
    load_pack(gelu_input, i, input);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      gradient[j] = float(T(Gradient<Gelu, GpuSigmoid>{}(gradient[j], input[j])));
    }
    store_pack(dx, i, gradient);
    AddAll{}(total, gradient);
  }
  store_chunk_sums(grid, walk, total, partial);
}

}  // namespace

template <class T>
void gelu_gradient_and_sums(Cuda device, const T* dy, const T* gelu_input, T* dx, Wide<T>* partial,
                            int64_t rows, int64_t columns) {
  if (rows == 0) {
    return;
  }
  const ColumnGrid grid(rows, columns);
  with_pack<T>(packs_fit(columns, dy, gelu_input, dx), [&]<int kColumns>() {
    launch<gelu_gradient_kernel<T, kColumns>>(device, grid.grid(kColumns), grid.block(kColumns), 0,
                                              grid, dy, gelu_input, dx, partial);
  });
}

#define TANDEM_GELU_GRADIENT(T) \
  template void gelu_gradient_and_sums<T>(Cuda, const T*, const T*, T*, float*, int64_t, int64_t);
TANDEM_FOR_GPU(TANDEM_GELU_GRADIENT)

}  // namespace tandem::kernels

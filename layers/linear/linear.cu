#include "layers/linear/linear.h"
#include "src/kernels/column_sums.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

// partial[chunk, j] = sum of dy[r, j] over the rows of a chunk.
template <class T, int kColumns>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    sum_rows_kernel(ColumnGrid grid, Global<const T> dy, Global<float> partial) {
  const ColumnWalk walk(grid, kColumns);
  const bool used = walk.column < grid.columns;
  float total[kColumns] = {};
  for (int64_t row = walk.first; used && row < walk.last; row += walk.step) {
    float values[kColumns];
    load_pack(dy, row * grid.columns + walk.column, values);
    AddAll{}(total, values);
  }
  combine_rows(total, AddAll{});
  if (used && threadIdx.y == 0) {
    store_pack(partial, blockIdx.y * grid.columns + walk.column, total);
  }
}

}  // namespace

template <class T>
void sum_rows(Cuda device, const T* dy, Wide<T>* dbias, Wide<T> beta, Wide<T>* workspace,
              int64_t rows, int64_t columns) {
  const ColumnGrid grid(rows, columns);
  with_pack<T>(packs_fit(columns, dy), [&]<int kColumns>() {
    launch<sum_rows_kernel<T, kColumns>>(device, grid.grid(kColumns), grid.block(kColumns), 0, grid,
                                         dy, workspace);
  });
  add_partial_rows(device, workspace, grid.chunks, columns, dbias, beta);
}

template void sum_rows<float>(Cuda, const float*, float*, float, float*, int64_t, int64_t);
template void sum_rows<Bf16>(Cuda, const Bf16*, float*, float, float*, int64_t, int64_t);
template void sum_rows<Fp16>(Cuda, const Fp16*, float*, float, float*, int64_t, int64_t);

}  // namespace tandem::kernels

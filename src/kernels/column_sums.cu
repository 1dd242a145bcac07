#include "src/kernels/column_sums.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

// partial[chunk, j] = sum of matrix[r, j] over the rows of a chunk.
template <class T, int kColumns>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    sum_rows_kernel(ColumnGrid grid, Global<const T> matrix, Global<float> partial) {
  const ColumnWalk walk(grid, kColumns);
  float total[kColumns] = {};
  for (int64_t row = walk.first; walk.column < grid.columns && row < walk.last; row += walk.step) {
    float values[kColumns];
    load_pack(matrix, row * grid.columns + walk.column, values);
    AddAll{}(total, values);
  }
  store_chunk_sums(grid, walk, total, partial);
}

// The sums of one launch. A block has 32 columns of one of them.
struct SumList {
  static constexpr int kMost = 16;
  PartialRows<float> of[kMost];
};

__global__ void __launch_bounds__(kTotalThreads) add_partial_rows_kernel(SumList list) {
  int64_t tile = blockIdx.x;
  int which = 0;
  for (; tile * kWarp >= list.of[which].columns; ++which) {
    tile -= (list.of[which].columns + kWarp - 1) / kWarp;
  }
  const PartialRows<float>& sum = list.of[which];
  const Global<const float> partial = sum.partial;
  const Global<float> totals = sum.total;
  const int64_t column = tile * kWarp + threadIdx.x % kWarp;
  const bool used = column < sum.columns;
  const double total = column_total(used ? sum.chunks : 0, [&](int64_t i) {
    return double{partial.load(i * sum.columns + column)};
  });
  if (used && threadIdx.x < kWarp) {
    const float old = sum.beta == 0 ? 0 : sum.beta * totals.load(column);
    totals.store(column, static_cast<float>(total) + old);
  }
}

}  // namespace

template <class T>
void sum_rows(Cuda device, const T* matrix, Wide<T>* partial, int64_t rows, int64_t columns) {
  if (rows == 0) {
    return;
  }
  const ColumnGrid grid(rows, columns);
  with_pack<T>(packs_fit(columns, matrix), [&]<int kColumns>() {
    launch<sum_rows_kernel<T, kColumns>>(device, grid.grid(kColumns), grid.block(kColumns), 0, grid,
                                         matrix, partial);
  });
}

template <>
void add_partial_rows<float>(Cuda device, std::span<const PartialRows<float>> sums) {
  while (!sums.empty()) {
    SumList list{};
    int64_t blocks = 0;
    const size_t count = std::min(sums.size(), size_t{SumList::kMost});
    for (size_t i = 0; i < count; ++i) {
      list.of[i] = sums[i];
      blocks += blocks_for(sums[i].columns, kWarp);
    }
    launch<add_partial_rows_kernel>(device, static_cast<unsigned>(blocks), kTotalThreads, 0, list);
    sums = sums.subspan(count);
  }
}

template void sum_rows<float>(Cuda, const float*, float*, int64_t, int64_t);
template void sum_rows<Bf16>(Cuda, const Bf16*, float*, int64_t, int64_t);
template void sum_rows<Fp16>(Cuda, const Fp16*, float*, int64_t, int64_t);

}  // namespace tandem::kernels

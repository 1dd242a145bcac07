#include "layers/embedding/embedding.h"
#include "layers/embedding/token_order.h"
#include "src/kernels/pack.cuh"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

namespace {

constexpr int kAhead = 8;        // rows of dy that a thread loads at the same time
constexpr int kBlocksPerSm = 3;  // few enough for the rows to fit in registers
constexpr int kLongRun = 64;     // a row with more tokens is summed by all warps of a block

// A row n of [batch, length], as a sample and a position.
struct Place {
  int64_t sample, position;
  __device__ int64_t sample_of(int64_t t) const { return sample + (t < position); }  // n or later
};

// The rows [first, end).
struct Placed {
  Place first, end;
};

// A row of the matrix is a position. Blocks with different blockIdx.z take different samples.
template <int kWidth, class T>
__global__ void __launch_bounds__(kMatrixThreads)
    embedding_forward_kernel(Global<const int32_t> tokens, Global<const T> weight,
                             Global<const int32_t> positions, Global<const T> of_positions,
                             Global<T> y, EmbeddingSizes sizes) {
  const int64_t length = sizes.length, width = sizes.width;
  for_matrix<kWidth>(length, width, [&](int64_t t, int64_t j) {
    float position[kWidth] = {};
    if (of_positions && !positions) {
      load_pack(of_positions, t * width + j, position);
    }
    for (int64_t b = blockIdx.z; b < sizes.batch; b += gridDim.z) {
      const int64_t n = b * length + t;
      const int64_t id = tokens.load(n);
      float token[kWidth] = {};
      if (sizes.tokens.has(id)) {
        load_pack(weight, (id - sizes.tokens.begin) * width + j, token);
      }
      if (of_positions && positions) {
        load_pack(of_positions, positions.load(n) * width + j, position);
      }
      if (sizes.placed.has(n)) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          token[k] += position[k];
        }
      }
      store_pack(y, n * width + j, token);
    }
  });
}

// total += row_of(0), row_of(1), ..., row_of(count - 1) of dy [*, width], in this order, for
// columns j, ..., j + kWidth - 1.
template <int kWidth, class T, class RowOf>
__device__ void add_rows(Global<const T> dy, int64_t width, int64_t j, int64_t count, RowOf row_of,
                         float (&total)[kWidth]) {
  int64_t n = 0;
  for (; n + kAhead <= count; n += kAhead) {
    float rows[kAhead][kWidth];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      load_pack(dy, row_of(n + i) * width + j, rows[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead * kWidth; ++i) {
      total[i % kWidth] += rows[i / kWidth][i % kWidth];
    }
  }
#pragma unroll 1
  for (; n < count; ++n) {
    float row[kWidth];
    load_pack(dy, row_of(n) * width + j, row);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      total[k] += row[k];
    }
  }
}

// into = beta * into + total. If beta is 0, `into` is not read.
template <int kWidth>
__device__ void store_gradient(Global<float> into, int64_t i, float beta, float (&total)[kWidth]) {
  if (beta != 0) {
    float before[kWidth];
    load_pack(into, i, before);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      total[k] += beta * before[k];
    }
  }
  store_pack(into, i, total);
}

// A block has kMatrixRows rows of dweight and a warp's width of columns. A row with few tokens is
// summed by one warp. A row with many is divided into stretches, one for each warp, whose sums are
// added in order.
template <int kWidth, class T>
__global__ void __launch_bounds__(kMatrixThreads, kBlocksPerSm)
    embedding_tokens_kernel(Global<const int32_t> order, Global<const int32_t> starts,
                            Global<const T> dy, Global<float> dweight, float beta, int64_t vocab,
                            int64_t width) {
  struct Partial {
    float of[kMatrixRows][kWidth][kMatrixColumns];
  };
  Partial& partial = shared<Partial>();
  const int64_t first_row = int64_t{blockIdx.x} * kMatrixRows;
  const int64_t j = (int64_t{blockIdx.y} * kMatrixColumns + threadIdx.x) * kWidth;
  const bool used = j < width;
  struct Run {
    int32_t first = 0, count = 0;  // in `order`
  };
  const auto run_of = [&](int64_t row) {
    const int32_t start = row < vocab ? starts.load(row) : 0;
    return row < vocab ? Run{start, starts.load(row + 1) - start} : Run{};
  };
  const auto add = [&](int64_t first, int64_t count, float(&total)[kWidth]) {
    const Global<const int32_t> at = order + first;
    add_rows<kWidth>(
        dy, width, j, count, [&](int64_t n) { return at.load(n); }, total);
  };

  const int64_t own = first_row + threadIdx.y;
  const Run own_run = run_of(own);
  if (own < vocab && used && own_run.count <= kLongRun && (own_run.count > 0 || beta != 1)) {
    float total[kWidth] = {};
    add(own_run.first, own_run.count, total);
    store_gradient<kWidth>(dweight, own * width + j, beta, total);
  }
  if (!__syncthreads_or(own_run.count > kLongRun)) {
    return;
  }
  for (int64_t row = first_row; row < first_row + kMatrixRows; ++row) {
    const Run run = run_of(row);
    if (run.count <= kLongRun) {
      continue;
    }
    const int64_t stretch = (run.count + kMatrixRows - 1) / kMatrixRows;
    const int64_t first = stretch * threadIdx.y, left = run.count - first;
    float total[kWidth] = {};
    if (used && left > 0) {
      add(run.first + first, left < stretch ? left : stretch, total);
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      partial.of[threadIdx.y][k][threadIdx.x] = total[k];
    }
    __syncthreads();
    if (threadIdx.y == 0 && used) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        for (int warp = 1; warp < kMatrixRows; ++warp) {
          total[k] += partial.of[warp][k][threadIdx.x];
        }
      }
      store_gradient<kWidth>(dweight, row * width + j, beta, total);
    }
    __syncthreads();
  }
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kMatrixThreads, kBlocksPerSm)
    embedding_positions_kernel(Global<const T> dy, Global<float> dweight, float beta,
                               int64_t context, int64_t length, int64_t width, Placed placed) {
  for_matrix<kWidth>(context, width, [&](int64_t t, int64_t j) {
    const bool seen = t < length;
    if (seen || beta != 1) {
      const int64_t from = placed.first.sample_of(t), to = placed.end.sample_of(t);
      float total[kWidth] = {};
      add_rows<kWidth>(
          dy, width, j, seen ? to - from : 0, [&](int64_t b) { return (from + b) * length + t; },
          total);
      store_gradient<kWidth>(dweight, t * width + j, beta, total);
    }
  });
}

}  // namespace

template <class T>
void embedding_forward(Cuda device, const int32_t* tokens, const T* weight,
                       const int32_t* positions, const T* of_positions, T* y,
                       const EmbeddingSizes& sizes) {
  const int64_t width = sizes.width;
  if (sizes.count() * width == 0) {
    return;
  }
  with_pack<T>(packs_fit(width, weight, of_positions, y), [&]<int kWidth>() {
    launch<embedding_forward_kernel<kWidth, T>>(
        device, matrix_grid(sizes.length, width, kWidth, sizes.batch), matrix_block(), 0, tokens,
        weight, positions, of_positions, y, sizes);
  });
}

template <class T>
void embedding_backward_tokens(Cuda device, const int32_t* tokens, const T* dy, Wide<T>* dweight,
                               Wide<T> beta, const EmbeddingSizes& sizes, int32_t* workspace) {
  const int64_t rows = sizes.rows(), width = sizes.width;
  if (rows * width == 0) {
    return;
  }
  const TokenOrder places = order_tokens(device, tokens, sizes.count(), sizes.vocab, workspace);
  with_pack<T, Wide<T>>(packs_fit(width, dy, dweight), [&]<int kWidth>() {
    const dim3 grid(blocks_for(rows, kMatrixRows), blocks_for(width, kMatrixColumns * kWidth));
    launch<embedding_tokens_kernel<kWidth, T>>(device, grid, matrix_block(), 0, places.order,
                                               places.starts + sizes.tokens.begin, dy, dweight,
                                               beta, rows, width);
  });
}

template <class T>
void embedding_backward_positions(Cuda device, const T* dy, Wide<T>* dweight, Wide<T> beta,
                                  int64_t context, const EmbeddingSizes& sizes) {
  const int64_t length = sizes.length, width = sizes.width;
  if (context * width == 0) {
    return;
  }
  const auto place = [&](int64_t n) {
    return Place{n / std::max<int64_t>(1, length), n % std::max<int64_t>(1, length)};
  };
  const Placed placed{place(sizes.placed.begin), place(sizes.placed.end)};
  with_pack<T, Wide<T>>(packs_fit(width, dy, dweight), [&]<int kWidth>() {
    launch<embedding_positions_kernel<kWidth, T>>(device, matrix_grid(context, width, kWidth),
                                                  matrix_block(), 0, dy, dweight, beta, context,
                                                  length, width, placed);
  });
}

#define TANDEM_EMBEDDING(T)                                                                        \
  template void embedding_forward<T>(Cuda, const int32_t*, const T*, const int32_t*, const T*, T*, \
                                     const EmbeddingSizes&);                                       \
  template void embedding_backward_tokens<T>(Cuda, const int32_t*, const T*, float*, float,        \
                                             const EmbeddingSizes&, int32_t*);                     \
  template void embedding_backward_positions<T>(Cuda, const T*, float*, float, int64_t,            \
                                                const EmbeddingSizes&);
TANDEM_FOR_GPU(TANDEM_EMBEDDING)

}  // namespace tandem::kernels

// Attention on a GPU: forward. The softmax is computed online (Milakov and Gimelshein 2018,
// arXiv:1805.02867): when a larger score comes, the sums so far are rescaled. Exponentials are in
// base 2, which the GPU has an instruction for.
#include "layers/attention/attention.h"
#include "layers/attention/attention_tile.cuh"
#include "layers/attention/flash.cuh"
#include "src/device/ptx.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

using namespace attention_tile;

constexpr int kQueries = 64;  // queries per block
constexpr int kEach = kQueries / kDown;

template <int kWidth>
struct ForwardTiles {
  Tile<kWidth, kQueries> queries;
  Tile<kWidth, kStreamed> keys, values;
  Tile<kStreamed, kQueries> weights;
};

// The softmax of a thread's rows, up to the current tile of keys.
struct Softmax {
  float largest[kEach];  // largest score; the same in all threads of a row
  float total[kEach];    // sum of the exponentials of this thread's scores
};

// Replaces scores by exponentials relative to the largest score so far. The scores are those of
// queries starting at `query` with keys starting at `key`; a row's document starts at key start[i].
// factor[i] rescales earlier sums to the new largest score.
template <bool kDocuments>
__device__ void exponentiate(float (&scores)[kEach][kScores], int64_t query, int64_t key,
                             const int (&start)[kEach], float exponent_scale, Softmax& softmax,
                             float (&factor)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float largest = softmax.largest[i];
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const bool seen = key + streamed_row(j) <= query + owned_row(i) &&
                        (!kDocuments || key + streamed_row(j) >= start[i]);
      scores[i][j] = seen ? scores[i][j] * exponent_scale : -INFINITY;
      largest = fmaxf(largest, scores[i][j]);  // ignores NaN; a NaN stays in its score
    }
    largest = row_max(largest);
    factor[i] = ptx::exp2(softmax.largest[i] - largest);
    softmax.largest[i] = largest;
    softmax.total[i] *= factor[i];
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      scores[i][j] = ptx::exp2(scores[i][j] - largest);
      softmax.total[i] += scores[i][j];
    }
  }
}

template <class T, int kWidth, bool kDocuments>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attention_kernel(AttentionSizes sizes, bool vector, float exponent_scale, Global<const T> qkv,
                     Global<const int32_t> positions, Global<T> y, Global<float> log_sum) {
  auto& tiles = *dynamic_shared<ForwardTiles<kWidth>>();
  const int64_t count = (sizes.length + kQueries - 1) / kQueries;
  const auto [tile, h, b] = work_of_block(count, sizes.heads);
  const int64_t first = (count - 1 - tile) * kQueries;  // the longest work comes first
  const int64_t k_head = sizes.heads + h / sizes.group();
  const auto rows_of = [&](int64_t head) {
    return Rows<const T>{qkv + sizes.qkv_at(b, head), sizes.row(), sizes.length,
                         static_cast<int>(sizes.width), vector};
  };
  load_tile(rows_of(h), first, tiles.queries);
  const Documents<kDocuments> documents(positions, sizes, b);
  float sums[kEach][kSums<kWidth>] = {}, factor[kEach];
  Softmax softmax;
  int start[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    start[i] = documents.start(first + owned_row(i));
    softmax.largest[i] = kLowest;
    softmax.total[i] = 0;
  }
  const int64_t end = first + kQueries < sizes.length ? first + kQueries : sizes.length;
  const int64_t begin = documents.start(first) / kStreamed * kStreamed;
  for (int64_t key = begin; key < end; key += kStreamed) {
    __syncthreads();  // all threads have read the previous keys and values
    load_tile(rows_of(k_head), key, tiles.keys);
    load_tile(rows_of(k_head + sizes.kv_heads), key, tiles.values);
    __syncthreads();
    float scores[kEach][kScores];
    multiply(tiles.queries, tiles.keys, scores);
    exponentiate<kDocuments>(scores, first, key, start, exponent_scale, softmax, factor);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int c = 0; c < kSums<kWidth>; ++c) {
        sums[i][c] *= factor[i];
      }
    }
    add_weighted(scores, tiles.weights, tiles.values, sums);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float total = row_sum(softmax.total[i]);
    const int64_t query = first + owned_row(i);
    if (across() == 0 && query < sizes.length) {
      log_sum.store(sizes.log_sum_at(b, h) + query, softmax.largest[i] * kLn2 + logf(total));
    }
    factor[i] = 1 / total;
  }
  const Rows<T> to{y + sizes.y_at(b, h), sizes.heads * sizes.width, sizes.length,
                   static_cast<int>(sizes.width), vector};
  store_sums(sums, factor, tiles.queries, to, first, 0);
}

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

template <class T>
void attention_forward(Cuda device, const T* qkv, const int32_t* positions, T* y, Wide<T>* log_sum,
                       const AttentionSizes& sizes, Wide<T>*) {
  const int64_t width = sizes.width;
  const int64_t blocks = sizes.batch * sizes.heads * ((sizes.length + kQueries - 1) / kQueries);
  if (blocks == 0) {
    return;
  }
  if constexpr (kIs16Bit<T>) {
    if (attention_on_tensor_cores(dtype_of<T>, width) && aligned16(qkv, y)) {
      return flash::forward(device, sizes, qkv, positions, y, log_sum);
    }
  }
  with_width(width, [&]<int kWidth>() {
    with_documents(positions, [&]<bool kDocuments>() {
      launch<attention_kernel<T, kWidth, kDocuments>>(
          device, static_cast<unsigned>(blocks), kThreads, bytes_of<ForwardTiles<kWidth>>(), sizes,
          packs_fit(width, qkv, y), scale_of(width) * kLog2E, qkv, positions, y, log_sum);
    });
  });
}

#define TANDEM_ATTENTION(T)                                                      \
  template void attention_forward<T>(Cuda, const T*, const int32_t*, T*, float*, \
                                     const AttentionSizes&, float*);
TANDEM_FOR_GPU(TANDEM_ATTENTION)

void limit_to_window(Cuda device, const int32_t* positions, int32_t* seen,
                     const AttentionSizes& sizes, int64_t window) {
  const int64_t n = sizes.batch * sizes.length;
  if (n > 0) {
    launch<limit_to_window_kernel>(device, blocks_for(n, kThreads), kThreads, 0, positions, seen, n,
                                   sizes.length, window);
  }
}

}  // namespace tandem::kernels

// Attention on a GPU: backward. Scores are computed again, and the saved log-sum-exp turns them
// into probabilities. No two blocks write the same element, because there are two passes: one for
// the gradients of queries, one for those of keys and values. In each pass a block keeps its own
// rows in shared memory and streams the other rows past them.
#include "layers/attention/attention.h"
#include "layers/attention/attention_tile.cuh"
#include "layers/attention/flash.cuh"
#include "src/device/ptx.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

using namespace attention_tile;

// The number of rows that a block owns: as many as fit in shared memory (bytes_of).
template <int kWidth>
constexpr int kOwned = kWidth <= 64 ? 64 : 32;
template <int kWidth>
constexpr int kEach = kOwned<kWidth> / kDown;

// Queries and dy on one side, keys and values on the other.
template <int kWidth>
struct BackwardTiles {
  Tile<kWidth, kOwned<kWidth>> owned[2];
  Tile<kWidth, kStreamed> streamed[2];
  Tile<kStreamed, kOwned<kWidth>> weights;
};

template <class T>
struct Arguments {
  AttentionSizes sizes;
  bool vector;
  float scale;  // factor from <query, key> to score
  float beta;
  Global<const T> dy, qkv;
  Global<const float> log_sum;
  Global<float> delta;
  Global<T> dqkv;

  __device__ Rows<const T> qkv_rows(int64_t b, int64_t head) const {
    return {qkv + sizes.qkv_at(b, head), sizes.row(), sizes.length, static_cast<int>(sizes.width),
            vector};
  }
  __device__ Rows<T> dqkv_rows(int64_t b, int64_t head) const {
    return {dqkv + sizes.qkv_at(b, head), sizes.row(), sizes.length, static_cast<int>(sizes.width),
            vector};
  }
  // The rows of y, or of its gradient.
  __device__ Rows<const T> output_rows(Global<const T> y, int64_t b, int64_t head) const {
    return {y + sizes.y_at(b, head), sizes.heads * sizes.width, sizes.length,
            static_cast<int>(sizes.width), vector};
  }
};

// The numbers of a query's row that the gradient of its softmax needs.
struct QueryRow {
  float log_sum;  // in base 2
  float delta;
};

template <class T>
__device__ QueryRow load_query_row(const Arguments<T>& of, int64_t b, int64_t h, int64_t query) {
  if (query >= of.sizes.length) {
    return {0, 0};
  }
  const int64_t at = of.sizes.log_sum_at(b, h) + query;
  return {of.log_sum.load(at) * kLog2E, of.delta.load(at)};
}

// Replaces a score by its probability, and the gradient of the probability by the gradient of
// <query, key>.
__device__ void differentiate(float& score, float& gradient, bool seen, float scale, QueryRow row) {
  score = seen ? ptx::exp2(score * (scale * kLog2E) - row.log_sum) : 0;
  gradient = seen ? score * (gradient - row.delta) * scale : 0;
}

// The kernel also writes delta [batch, heads, length] = <dy, y>, which is the sum over keys of
// probability * dprobability.
template <class T, int kWidth, bool kDocuments>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attention_dq_kernel(AttentionSizes sizes, bool vector, float scale, float beta,
                        Global<const T> dy, Global<const T> qkv, Global<const int32_t> positions,
                        Global<const T> y, Global<const float> log_sum, Global<float> delta,
                        Global<T> dqkv) {
  const Arguments<T> of{sizes, vector, scale, beta, dy, qkv, log_sum, delta, dqkv};
  auto& tiles = *dynamic_shared<BackwardTiles<kWidth>>();
  constexpr int kQueries = kOwned<kWidth>;
  const int64_t length = of.sizes.length, count = (length + kQueries - 1) / kQueries;
  const auto [tile, h, b] = work_of_block(count, of.sizes.heads);
  const int64_t first = (count - 1 - tile) * kQueries;  // the longest work comes first
  const int64_t k_head = of.sizes.heads + h / of.sizes.group();
  const Documents<kDocuments> documents(positions, sizes, b);
  load_tile(of.output_rows(y, b, h), first, tiles.owned[0]);
  load_tile(of.output_rows(dy, b, h), first, tiles.owned[1]);
  __syncthreads();
  QueryRow row[kEach<kWidth>];
  int start[kEach<kWidth>];
  float dq[kEach<kWidth>][kSums<kWidth>] = {}, ones[kEach<kWidth>];
#pragma unroll
  for (int i = 0; i < kEach<kWidth>; ++i) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kSums<kWidth>; c += 4) {
      const int group = across() + c / 4 * kAcross;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sum += tiles.owned[0].rows[owned_row(i)][group][k] *
               tiles.owned[1].rows[owned_row(i)][group][k];
      }
    }
    row[i] = {0, row_sum(sum)};
    ones[i] = 1;
    const int64_t query = first + owned_row(i), at = of.sizes.log_sum_at(b, h) + query;
    start[i] = documents.start(query);
    if (query < length) {
      row[i].log_sum = of.log_sum.load(at) * kLog2E;
      if (across() == 0) {
        of.delta.store(at, row[i].delta);
      }
    }
  }
  __syncthreads();  // all threads have read y
  load_tile(of.qkv_rows(b, h), first, tiles.owned[0]);
  const int64_t end = first + kQueries < length ? first + kQueries : length;
  const int64_t begin = documents.start(first) / kStreamed * kStreamed;
  for (int64_t key = begin; key < end; key += kStreamed) {
    __syncthreads();  // all threads have read the previous keys and values
    load_tile(of.qkv_rows(b, k_head), key, tiles.streamed[0]);
    load_tile(of.qkv_rows(b, k_head + of.sizes.kv_heads), key, tiles.streamed[1]);
    __syncthreads();
    float scores[kEach<kWidth>][kScores], gradients[kEach<kWidth>][kScores];
    multiply(tiles.owned[0], tiles.streamed[0], scores);
    multiply(tiles.owned[1], tiles.streamed[1], gradients);
#pragma unroll
    for (int i = 0; i < kEach<kWidth>; ++i) {
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        const int64_t query = first + owned_row(i);
        const bool seen = key + streamed_row(j) <= query && query < length &&
                          (!kDocuments || key + streamed_row(j) >= start[i]);
        differentiate(scores[i][j], gradients[i][j], seen, of.scale, row[i]);
      }
    }
    add_weighted(gradients, tiles.weights, tiles.streamed[0], dq);
  }
  store_sums(dq, ones, tiles.owned[0], of.dqkv_rows(b, h), first, of.beta);
}

// Adds what the queries of one head contribute to the gradients of the block's keys and values,
// which start at `first`. Queries from `end` on see none of these.
template <class T, int kWidth, bool kDocuments>
__device__ void add_head(const Arguments<T>& of, const Documents<kDocuments>& documents, int64_t b,
                         int64_t h, int64_t first, int64_t end, BackwardTiles<kWidth>& tiles,
                         float (&dk)[kEach<kWidth>][kSums<kWidth>],
                         float (&dv)[kEach<kWidth>][kSums<kWidth>]) {
  for (int64_t begin = first; begin < end; begin += kStreamed) {
    __syncthreads();  // all threads have read the previous queries
    load_tile(of.qkv_rows(b, h), begin, tiles.streamed[0]);
    load_tile(of.output_rows(of.dy, b, h), begin, tiles.streamed[1]);
    __syncthreads();
    float scores[kEach<kWidth>][kScores], gradients[kEach<kWidth>][kScores];
    multiply(tiles.owned[0], tiles.streamed[0], scores);
    multiply(tiles.owned[1], tiles.streamed[1], gradients);
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
      const int64_t query = begin + streamed_row(j);
      const QueryRow row = load_query_row(of, b, h, query);
      const int start = documents.start(query);
#pragma unroll
      for (int i = 0; i < kEach<kWidth>; ++i) {
        const bool seen = first + owned_row(i) <= query && query < of.sizes.length &&
                          (!kDocuments || first + owned_row(i) >= start);
        differentiate(scores[i][j], gradients[i][j], seen, of.scale, row);
      }
    }
    add_weighted(scores, tiles.weights, tiles.streamed[1], dv);
    add_weighted(gradients, tiles.weights, tiles.streamed[0], dk);
  }
}

template <class T, int kWidth, bool kDocuments>
__global__ void __launch_bounds__(kThreads, kBlocks)
    attention_dkv_kernel(AttentionSizes sizes, bool vector, float scale, float beta,
                         Global<const T> dy, Global<const T> qkv, Global<const int32_t> positions,
                         Global<const float> log_sum, Global<float> delta, Global<T> dqkv) {
  const Arguments<T> of{sizes, vector, scale, beta, dy, qkv, log_sum, delta, dqkv};
  auto& tiles = *dynamic_shared<BackwardTiles<kWidth>>();
  constexpr int kKeys = kOwned<kWidth>;
  const int64_t group = of.sizes.group(), kv_heads = of.sizes.kv_heads;
  const auto [tile, g, b] = work_of_block((of.sizes.length + kKeys - 1) / kKeys, kv_heads);
  const int64_t first = tile * kKeys, k_head = of.sizes.heads + g, v_head = k_head + kv_heads;
  load_tile(of.qkv_rows(b, k_head), first, tiles.owned[0]);
  load_tile(of.qkv_rows(b, v_head), first, tiles.owned[1]);
  float dk[kEach<kWidth>][kSums<kWidth>] = {}, dv[kEach<kWidth>][kSums<kWidth>] = {};
  float ones[kEach<kWidth>];
#pragma unroll
  for (int i = 0; i < kEach<kWidth>; ++i) {
    ones[i] = 1;
  }
  const Documents<kDocuments> documents(positions, sizes, b);
  const int64_t end = documents.end(static_cast<int>(first) + kKeys - 1);
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    add_head(of, documents, b, h, first, end, tiles, dk, dv);
  }
  store_sums(dk, ones, tiles.owned[0], of.dqkv_rows(b, k_head), first, of.beta);
  store_sums(dv, ones, tiles.owned[1], of.dqkv_rows(b, v_head), first, of.beta);
}

}  // namespace

template <class T>
void attention_backward(Cuda device, const T* dy, const T* qkv, const int32_t* positions,
                        const T* y, const Wide<T>* log_sum, T* dqkv, Wide<T> beta,
                        const AttentionSizes& sizes, Wide<T>* workspace, Wide<T>* row_sums) {
  if (sizes.batch * sizes.length * sizes.heads == 0) {
    return;
  }
  const bool vector = packs_fit(sizes.width, dy, qkv, y, dqkv);
  const float scale = scale_of(sizes.width);
  if constexpr (kIs16Bit<T>) {
    if (attention_on_tensor_cores(dtype_of<T>, sizes.width) && aligned16(qkv, y, dy, dqkv)) {
      return flash::backward(device, sizes, dy, qkv, positions, y, log_sum, workspace, dqkv, beta,
                             row_sums);
    }
  }
  require(!row_sums, "attention_backward: arrays must be aligned to 16 bytes for row_sums");
  with_width(sizes.width, [&]<int kWidth>() {
    const int64_t tiles = sizes.batch * ((sizes.length + kOwned<kWidth> - 1) / kOwned<kWidth>);
    constexpr size_t kBytes = bytes_of<BackwardTiles<kWidth>>();
    with_documents(positions, [&]<bool kDocuments>() {
      launch<attention_dq_kernel<T, kWidth, kDocuments>>(
          device, static_cast<unsigned>(tiles * sizes.heads), kThreads, kBytes, sizes, vector,
          scale, beta, dy, qkv, positions, y, log_sum, workspace, dqkv);
      launch<attention_dkv_kernel<T, kWidth, kDocuments>>(
          device, static_cast<unsigned>(tiles * sizes.kv_heads), kThreads, kBytes, sizes, vector,
          scale, beta, dy, qkv, positions, log_sum, workspace, dqkv);
    });
  });
}

#define TANDEM_ATTENTION(T)                                                                   \
  template void attention_backward<T>(Cuda, const T*, const T*, const int32_t*, const T*,     \
                                      const float*, T*, float, const AttentionSizes&, float*, \
                                      float*);
TANDEM_FOR_GPU(TANDEM_ATTENTION)

}  // namespace tandem::kernels

#include "layers/attention/attention.h"
#include "layers/attention/flash.cuh"

namespace tandem::flash {

namespace {

// Rows that are streamed at once: queries in dkv, keys in dq.
constexpr int kQueries = 32;
template <int kM, int kWidth>
constexpr int kKeys = kHeld<kM, kWidth> ? 16 : 32;

template <int kM>
constexpr int kOwned = kWarps * 16 * kM;

// Queries and dy on one side, keys and values on the other. One stage of streamed rows is used
// while the others arrive.
template <class T, int kM, int kWidth, int kStreamed>
struct BackwardTiles {
  mma::Tile<T, kOwned<kM>, kWidth> owned[2];
  static constexpr int kStages = 64 / kStreamed;
  struct Stage {
    mma::Tile<T, kStreamed, kWidth> rows[2];
    float log_sum[kStreamed], delta[kStreamed];  // if the rows are queries
  } stages[kStages];
  int32_t positions[kStages][kStreamed];  // of queries that have documents
};

// products[m][half] = <row of a, row of b> of this lane's rows of the 16 kM that begin at `row`.
template <class T, int kM, int kRows, int kWidth>
__device__ void multiply_rows(mma::Tile<T, kRows, kWidth>& a, mma::Tile<T, kRows, kWidth>& b,
                              int row, float (&products)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    products[m][0] = products[m][1] = 0;
#pragma unroll
    for (int k = 0; k < kWidth; k += 16) {
      uint32_t of_a[4], of_b[4];
      mma::load_a(a, row + m * 16, k, of_a);
      mma::load_a(b, row + m * 16, k, of_b);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto x = std::bit_cast<Pack<T, 2>>(of_a[i]), y = std::bit_cast<Pack<T, 2>>(of_b[i]);
        products[m][i % 2] += float(x[0]) * float(y[0]) + float(x[1]) * float(y[1]);
      }
    }
    products[m][0] = row_sum(products[m][0]);
    products[m][1] = row_sum(products[m][1]);
  }
}

// Replaces a <query, key> by its probability, and the gradient of the probability by that of
// <query, key>, without the factor `scale`. log_sum is in base 2.
__device__ void differentiate(float& score, float& gradient, float exponent_scale, float log_sum,
                              float delta) {
  score = ptx::exp2(score * exponent_scale - log_sum);
  gradient = score * (gradient - delta);
}

template <int kM>
__device__ void fill(float (&factor)[kM][2], float value) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    factor[m][0] = factor[m][1] = value;
  }
}

// row_sums [chunks, row]: the sums of one head's columns over the rows of a block, which its tile
// holds as they were stored, from position `first` of sequence b on. All threads must call this,
// after the block's barrier.
template <class T, int kRows, int kWidth>
__device__ void store_row_sums(mma::Tile<T, kRows, kWidth>& tile, Global<float> row_sums,
                               const AttentionSizes& sizes, int64_t b, int64_t head, int first) {
  constexpr int kSumRows = kernels::kAttentionSumRows;
  constexpr int kGroup = kThreads * kSumRows / kRows;  // threads for a chunk, two columns each
  static_assert(2 * kGroup >= kWidth);
  const int chunk = static_cast<int>(threadIdx.x) / kGroup;
  const int column = static_cast<int>(threadIdx.x) % kGroup * 2;
  const int length = static_cast<int>(sizes.length);
  const int rows = min(length - first - chunk * kSumRows, kSumRows);
  if (column >= kWidth || rows <= 0) {
    return;
  }
  Pack<float, 2> sums = {};
  for (int r = 0; r < rows; ++r) {
    const auto pair = tile.at(chunk * kSumRows + r, column).template load_as<Pack<T, 2>>(0);
    sums[0] += float(pair[0]);
    sums[1] += float(pair[1]);
  }
  const int64_t place = b * ((length + kSumRows - 1) / kSumRows) + first / kSumRows + chunk;
  row_sums.store8(place * sizes.row() + head * kWidth + column, sums);
}

template <class T, int kM, int kWidth, bool kDocuments>
__global__ void __launch_bounds__(kThreads, kBlocks)
    flash_dq_kernel(AttentionSizes sizes, float scale, float beta, Global<const T> dy,
                    Global<const T> qkv, Global<const int32_t> positions, Global<const T> y,
                    Global<const float> log_sum, Global<float> delta, Global<T> dqkv,
                    Global<float> row_sums) {
  constexpr int kStreamed = kKeys<kM, kWidth>;
  using Tiles = BackwardTiles<T, kM, kWidth, kStreamed>;
  constexpr int kAhead = Tiles::kStages - 1;
  auto& tiles = *dynamic_shared<Tiles>();
  const int length = static_cast<int>(sizes.length);
  const int64_t count = (length + kOwned<kM> - 1) / kOwned<kM>;
  const auto [tile, h, b] = work_of_block(count, sizes.heads);
  const int first = static_cast<int>(count - 1 - tile) * kOwned<kM>;  // the longest work is first
  const int64_t k_head = sizes.heads + h / sizes.group();
  const int end = min(first + kOwned<kM>, length);
  const auto load_keys = [&](int key) {
    if (key < end) {
      auto& rows = tiles.stages[key / kStreamed % Tiles::kStages].rows;
      mma::load_async<kThreads>(head_rows(qkv, sizes, b, k_head), key, rows[0]);
      mma::load_async<kThreads>(head_rows(qkv, sizes, b, k_head + sizes.kv_heads), key, rows[1]);
    }
    ptx::copies_commit();
  };
  mma::load_async<kThreads>(output_rows(y, sizes, b, h), first, tiles.owned[0]);
  mma::load_async<kThreads>(output_rows(dy, sizes, b, h), first, tiles.owned[1]);
  ptx::copies_commit();
  ptx::copies_wait<0>();
  __syncthreads();
  const int row = warp_row<kM>();
  const Documents<kDocuments> documents(positions, sizes, b);
  const int begin = documents.start(first) / kStreamed * kStreamed;
  // The first tile that the warp sees; its last query sees no key before last_start.
  const int warp_begin = documents.start(first + row) / kStreamed * kStreamed;
  const int last_start = documents.start(first + row + 16 * kM - 1);
  float row_log_sum[kM][2], row_delta[kM][2];
  multiply_rows(tiles.owned[0], tiles.owned[1], row, row_delta);
  __syncthreads();  // all warps have read y
  mma::load_async<kThreads>(head_rows(qkv, sizes, b, h), first, tiles.owned[0]);
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) {
    load_keys(begin + ahead * kStreamed);
  }

  const float exponent_scale = scale * kLog2E;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first + row + m * 16 + mma::row_of(2 * half);
      const int64_t at = sizes.log_sum_at(b, h) + query;
      row_log_sum[m][half] = query < length ? log_sum.load(at) * kLog2E : 0;
    }
  }
  float dq[kM][kWidth / 8][4] = {};
  auto queries = mma::rows_of_a<kHeld<kM, kWidth>, kM>(tiles.owned[0], row);
  auto dy_rows = mma::rows_of_a<kHeld<kM, kWidth>, kM>(tiles.owned[1], row);
  for (int key = begin; key < end; key += kStreamed) {
    ptx::copies_wait<kAhead - 1>();
    __syncthreads();  // this stage is there, and all warps have read the one before it
    load_keys(key + kAhead * kStreamed);
    if (key < warp_begin || key >= first + row + 16 * kM) {
      continue;  // not seen by the warp's first query or its last
    }
    auto& rows = tiles.stages[key / kStreamed % Tiles::kStages].rows;
    if (key == warp_begin) {
      queries.hold();
      dy_rows.hold();
    }
    float scores[kM][kStreamed / 8][4], gradients[kM][kStreamed / 8][4];
    mma::multiply_transposed(queries, rows[0], scores);
    mma::multiply_transposed(dy_rows, rows[1], gradients);
    if (key + kStreamed > first + row + 1) {
      mask<false>(scores, first + row, key);
    }
    if (kDocuments && key < last_start) {
      mask_documents<false>(scores, key, [&](int m, int, int i) {
        return documents.start(first + row + m * 16 + mma::row_of(i));
      });
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kStreamed / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          differentiate(scores[m][n][i], gradients[m][n][i], exponent_scale, row_log_sum[m][i / 2],
                        row_delta[m][i / 2]);
        }
      }
    }
    uint32_t weights[kM][kStreamed / 8][2];
    mma::round<T>(gradients, weights);
    mma::add_product(weights, rows[0], dq);
  }
  float factor[kM][2];
  fill(factor, scale);
  mma::store_sums(dq, factor, beta, tiles.owned[0], row, head_rows(dqkv, sizes, b, h), first + row);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first + row + m * 16 + mma::row_of(2 * half);
      if (threadIdx.x % 4 == 0 && query < length) {
        delta.store(sizes.log_sum_at(b, h) + query, row_delta[m][half]);
      }
    }
  }
  if (row_sums) {
    __syncthreads();
    store_row_sums(tiles.owned[0], row_sums, sizes, b, h, first);
  }
}

template <class T, int kM, int kWidth, bool kDocuments>
__global__ void __launch_bounds__(kThreads, kBlocks)
    flash_dkv_kernel(AttentionSizes sizes, float scale, float beta, Global<const T> dy,
                     Global<const T> qkv, Global<const int32_t> positions,
                     Global<const float> log_sum, Global<const float> delta, Global<T> dqkv,
                     Global<float> row_sums) {
  constexpr int kStreamed = kQueries;
  auto& tiles = *dynamic_shared<BackwardTiles<T, kM, kWidth, kStreamed>>();
  const int length = static_cast<int>(sizes.length);
  const auto [tile, g, b] = work_of_block((length + kOwned<kM> - 1) / kOwned<kM>, sizes.kv_heads);
  const int first = static_cast<int>(tile) * kOwned<kM>;
  const int64_t k_head = sizes.heads + g, v_head = k_head + sizes.kv_heads;
  const auto load_queries = [&](int h, int query, int to) {
    auto& stage = tiles.stages[to];
    mma::load_async<kThreads>(head_rows(qkv, sizes, b, h), query, stage.rows[0]);
    mma::load_async<kThreads>(output_rows(dy, sizes, b, h), query, stage.rows[1]);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int64_t at = sizes.log_sum_at(b, h) + query + lane;
    if (threadIdx.x < kWarp) {
      ptx::copy_async<4>(Shared(stage.log_sum + lane), log_sum, at, query + lane < length);
    } else if (threadIdx.x < 2 * kWarp) {
      ptx::copy_async<4>(Shared(stage.delta + lane), delta, at, query + lane < length);
    } else if (kDocuments && threadIdx.x < 3 * kWarp) {
      ptx::copy_async<4>(Shared(tiles.positions[to] + lane), positions, b * length + query + lane,
                         query + lane < length);
    }
    ptx::copies_commit();
  };
  mma::load_async<kThreads>(head_rows(qkv, sizes, b, k_head), first, tiles.owned[0]);
  mma::load_async<kThreads>(head_rows(qkv, sizes, b, v_head), first, tiles.owned[1]);
  int h = static_cast<int>(g * sizes.group());
  const int end = h + static_cast<int>(sizes.group());
  load_queries(h, first, 0);
  const int queries_end = Documents<kDocuments>(positions, sizes, b).end(first + kOwned<kM> - 1);

  const int row = warp_row<kM>();
  const float exponent_scale = scale * kLog2E;
  float dk[kM][kWidth / 8][4] = {}, dv[kM][kWidth / 8][4] = {};
  auto keys = mma::rows_of_a<false, kM>(tiles.owned[0], row);
  auto values = mma::rows_of_a<false, kM>(tiles.owned[1], row);
  // All tiles with a query that sees one of the keys, of one head after the other.
  for (int query = first, current = 0; h < end; current = 1 - current) {
    ptx::copies_wait<0>();
    __syncthreads();  // this stage is there, and all warps have read the other one
    const int this_query = query;
    query += kStreamed;
    if (query >= queries_end) {
      query = first;
      ++h;
    }
    if (h < end) {
      load_queries(h, query, 1 - current);
    }
    const auto start = [&](int column) {  // of a query past the end: itself
      return this_query + column - Shared(tiles.positions[current]).load(column);
    };
    if (this_query + kStreamed <= first + row ||
        (kDocuments && start(0) >= first + row + 16 * kM)) {
      continue;  // ends before the warp's first key, or begins after the document of its last
    }
    auto& stage = tiles.stages[current];
    float scores[kM][kStreamed / 8][4], gradients[kM][kStreamed / 8][4];
    mma::multiply_transposed(keys, stage.rows[0], scores);
    mma::multiply_transposed(values, stage.rows[1], gradients);
    if (this_query < first + row + 16 * kM - 1) {
      mask<true>(scores, first + row, this_query);
    }
    if (kDocuments && start(kStreamed - 1) > first + row) {
      mask_documents<true>(scores, first + row,
                           [&](int, int n, int i) { return start(n * 8 + mma::column_of(i)); });
    }
#pragma unroll
    for (int n = 0; n < kStreamed / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * 8 + mma::column_of(i);
        const float column_log_sum = Shared(stage.log_sum).load(column) * kLog2E;
        const float column_delta = Shared(stage.delta).load(column);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          differentiate(scores[m][n][i], gradients[m][n][i], exponent_scale, column_log_sum,
                        column_delta);
        }
      }
    }
    uint32_t of_v[kM][kStreamed / 8][2], of_k[kM][kStreamed / 8][2];
    mma::round<T>(scores, of_v);
    mma::round<T>(gradients, of_k);
    mma::add_product(of_v, stage.rows[1], dv);
    mma::add_product(of_k, stage.rows[0], dk);
  }
  float factor[kM][2];
  fill(factor, scale);
  mma::store_sums(dk, factor, beta, tiles.owned[0], row, head_rows(dqkv, sizes, b, k_head),
                  first + row);
  fill(factor, 1);
  mma::store_sums(dv, factor, beta, tiles.owned[1], row, head_rows(dqkv, sizes, b, v_head),
                  first + row);
  if (row_sums) {
    __syncthreads();
    store_row_sums(tiles.owned[0], row_sums, sizes, b, k_head, first);
    store_row_sums(tiles.owned[1], row_sums, sizes, b, v_head, first);
  }
}

}  // namespace

template <class T>
void backward(Cuda device, const AttentionSizes& sizes, const T* dy, const T* qkv,
              const int32_t* positions, const T* y, const float* log_sum, float* delta, T* dqkv,
              float beta, float* row_sums) {
  const auto blocks = [&](int owned, int64_t heads) {
    return static_cast<unsigned>((sizes.length + owned - 1) / owned * heads * sizes.batch);
  };
  // As many rows a warp as registers allow.
  with_variant(sizes.width, positions, [&]<int kWidth, bool kDocuments>() {
    constexpr int kM = kWidth == 128 ? 1 : 2;
    launch<flash_dq_kernel<T, kM, kWidth, kDocuments>>(
        device, blocks(kOwned<kM>, sizes.heads), kThreads,
        bytes_of<BackwardTiles<T, kM, kWidth, kKeys<kM, kWidth>>>(), sizes, scale_of(kWidth), beta,
        dy, qkv, positions, y, log_sum, delta, dqkv, row_sums);
  });
  with_variant(sizes.width, positions, [&]<int kWidth, bool kDocuments>() {
    constexpr int kM = kWidth == 64 ? 2 : 1;
    launch<flash_dkv_kernel<T, kM, kWidth, kDocuments>>(
        device, blocks(kOwned<kM>, sizes.kv_heads), kThreads,
        bytes_of<BackwardTiles<T, kM, kWidth, kQueries>>(), sizes, scale_of(kWidth), beta, dy, qkv,
        positions, log_sum, delta, dqkv, row_sums);
  });
}

template void backward<Bf16>(Cuda, const AttentionSizes&, const Bf16*, const Bf16*, const int32_t*,
                             const Bf16*, const float*, float*, Bf16*, float, float*);
template void backward<Fp16>(Cuda, const AttentionSizes&, const Fp16*, const Fp16*, const int32_t*,
                             const Fp16*, const float*, float*, Fp16*, float, float*);

}  // namespace tandem::flash

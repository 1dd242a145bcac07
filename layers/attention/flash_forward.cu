#include "layers/attention/flash.cuh"

namespace tandem::flash {

namespace {

constexpr int kM = 2;
constexpr int kQueries = kWarps * 16 * kM, kKeys = 64;  // at once

template <class T, int kWidth>
struct ForwardTiles {
  mma::Tile<T, kQueries, kWidth> queries;
  mma::Tile<T, kKeys, kWidth> keys, values;
};

// The softmax of a lane's rows, up to the current tile of keys (Milakov and Gimelshein 2018,
// arXiv:1805.02867).
struct Softmax {
  float largest[kM][2];  // largest <query, key>; the same in the four lanes of a row
  float total[kM][2];    // sum of this lane's exponentials
};

// Replaces scores by exponentials relative to the largest score so far, and rescales the sums.
template <int kN, int kOutputs>
__device__ void exponentiate(mma::Sums<kM, kN>& scores, float exponent_scale, Softmax& softmax,
                             mma::Sums<kM, kOutputs>& sums) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = softmax.largest[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) {  // fmaxf ignores NaN; a NaN stays in its score
        largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      }
      largest = row_max(largest);
      const float factor = ptx::exp2((softmax.largest[m][half] - largest) * exponent_scale);
      const float shift = largest * exponent_scale;
      softmax.largest[m][half] = largest;
      float total = softmax.total[m][half] * factor;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] = ptx::exp2(scores[m][n][i] * exponent_scale - shift);
          total += scores[m][n][i];
        }
      }
      softmax.total[m][half] = total;
#pragma unroll
      for (int n = 0; n < kOutputs; ++n) {
        sums[m][n][2 * half] *= factor;
        sums[m][n][2 * half + 1] *= factor;
      }
    }
  }
}

// While the warps multiply queries by keys, the values of these keys arrive; while they multiply
// probabilities by values, the next keys do.
template <class T, int kWidth, bool kDocuments>
__global__ void __launch_bounds__(kThreads, kBlocks)
    flash_forward_kernel(AttentionSizes sizes, float scale, Global<const T> qkv,
                         Global<const int32_t> positions, Global<T> y, Global<float> log_sum) {
  auto& tiles = *dynamic_shared<ForwardTiles<T, kWidth>>();
  const int length = static_cast<int>(sizes.length);
  const int64_t count = (length + kQueries - 1) / kQueries;
  const auto [tile, h, b] = work_of_block(count, sizes.heads);
  // The longest work comes first.
  const int first = static_cast<int>(count - 1 - tile) * kQueries;
  const int64_t k_head = sizes.heads + h / sizes.group();
  const auto keys = head_rows(qkv, sizes, b, k_head);
  const auto values = head_rows(qkv, sizes, b, k_head + sizes.kv_heads);
  mma::load_async<kThreads>(head_rows(qkv, sizes, b, h), first, tiles.queries);
  const Documents<kDocuments> documents(positions, sizes, b);
  const int begin = documents.start(first) / kKeys * kKeys;
  mma::load_async<kThreads>(keys, begin, tiles.keys);
  ptx::copies_commit();

  const int row = warp_row<kM>();
  // The first tile that the warp sees; its last query sees no key before last_start.
  const int warp_begin = documents.start(first + row) / kKeys * kKeys;
  const int last_start = documents.start(first + row + 16 * kM - 1);
  const float exponent_scale = scale * kLog2E;
  float sums[kM][kWidth / 8][4] = {};
  Softmax softmax;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    softmax.largest[m][0] = softmax.largest[m][1] = kLowest;
    softmax.total[m][0] = softmax.total[m][1] = 0;
  }
  auto queries = mma::rows_of_a<kHeld<kM, kWidth>, kM>(tiles.queries, row);
  const int end = min(first + kQueries, length);
  for (int key = begin; key < end; key += kKeys) {
    // By the warp's first query, or by its last.
    const bool seen = key >= warp_begin && key < first + row + 16 * kM;
    ptx::copies_wait<0>();
    __syncthreads();  // the keys are there, and all warps have read the previous values
    mma::load_async<kThreads>(values, key, tiles.values);
    ptx::copies_commit();
    uint32_t weights[kM][kKeys / 8][2];
    if (seen) {
      float scores[kM][kKeys / 8][4];
      if (key == warp_begin) {
        queries.hold();
      }
      mma::multiply_transposed(queries, tiles.keys, scores);
      if (key + kKeys > first + row + 1) {
        mask<false>(scores, first + row, key);
      }
      if (kDocuments && key < last_start) {
        mask_documents<false>(scores, key, [&](int m, int, int i) {
          return documents.start(first + row + m * 16 + mma::row_of(i));
        });
      }
      exponentiate(scores, exponent_scale, softmax, sums);
      mma::round<T>(scores, weights);
    }
    ptx::copies_wait<0>();
    __syncthreads();  // the values are there, and all warps have read the keys
    if (key + kKeys < end) {
      mma::load_async<kThreads>(keys, key + kKeys, tiles.keys);
      ptx::copies_commit();
    }
    if (seen) {
      mma::add_product(weights, tiles.values, sums);
    }
  }

  float factor[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = row_sum(softmax.total[m][half]);
      const int query = first + row + m * 16 + mma::row_of(2 * half);
      if (threadIdx.x % 4 == 0 && query < length) {
        log_sum.store(sizes.log_sum_at(b, h) + query,
                      softmax.largest[m][half] * scale + logf(total));
      }
      factor[m][half] = 1 / total;
    }
  }
  mma::store_sums(sums, factor, 0, tiles.queries, row, output_rows(y, sizes, b, h), first + row);
}

}  // namespace

template <class T>
void forward(Cuda device, const AttentionSizes& sizes, const T* qkv, const int32_t* positions, T* y,
             float* log_sum) {
  with_variant(sizes.width, positions, [&]<int kWidth, bool kDocuments>() {
    const int64_t tiles = (sizes.length + kQueries - 1) / kQueries;
    launch<flash_forward_kernel<T, kWidth, kDocuments>>(
        device, static_cast<unsigned>(tiles * sizes.heads * sizes.batch), kThreads,
        bytes_of<ForwardTiles<T, kWidth>>(), sizes, scale_of(kWidth), qkv, positions, y, log_sum);
  });
}

template void forward<Bf16>(Cuda, const AttentionSizes&, const Bf16*, const int32_t*, Bf16*,
                            float*);
template void forward<Fp16>(Cuda, const AttentionSizes&, const Fp16*, const int32_t*, Fp16*,
                            float*);

}  // namespace tandem::flash

// Attention on tensor cores: causal flash attention (Dao et al. 2022, arXiv:2205.14135; Dao 2023,
// arXiv:2307.08691), for bf16 and fp16 and heads that are 64, 96 or 128 wide. Other types, widths
// and alignments use attention.cu. Internal to attention.
//
// A block of four warps owns a tile of rows and streams tiles of other rows past it. Each warp owns
// 16 kM of the rows. So scores stay in the registers of their warp, from the product that makes
// them to the one that uses them, and softmax needs only the four lanes of a row. Each fragment
// that is read from shared memory for the streamed rows serves kM instructions.
//
//              owned rows             streamed rows, at once       products
//   forward    128 queries            64 keys, values              S = Q K^T; O += P V
//   dq         128 queries, dy        16 keys, values (32)         S, dP = dY V^T; dQ += dS K
//   dkv        128 keys, values (64)  32 queries, dy               S^T, dP^T; dV += P^T dY,
//                                                                  dK += dS^T Q
//
// (dkv has 64 rows for heads wider than 64, dq for heads 128 wide; dq has 32 keys for heads 96
// wide.) Scores and their gradients are f32. Like all operands of tensor cores, probabilities P and
// gradients of scores dS are rounded to the storage type. dq runs first and also takes
// delta = <dy, y> of its rows, which dkv reads.
//
// Where a sequence has documents (kDocuments), a block streams only from the start of the document
// of its first query, or to the end of that of its last key. Warps leave out tiles that they do not
// see, and compare keys with borders of documents only in tiles that have one.
//
// dQ has a pass of its own. It computes S and dP a second time: 7 products of T^2 / 2 x D instead
// of 5. tests/bench/results/2026-11-26_attention_backward.md weighs this against one pass that
// stores dS or sums of dQ, which needs memory and is slower where memory is slow.
#pragma once

#include "layers/attention/attention_sizes.cuh"
#include "src/kernels/mma.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::flash {

using namespace attention_sizes;

inline constexpr int kWarps = 4, kThreads = kWarps * kWarp;

// Calls f.template operator()<kWidth, kDocuments>().
template <class F>
void with_variant(int64_t width, const int32_t* positions, F f) {
  with_documents(positions, [&]<bool kDocuments>() {
    width == 64   ? f.template operator()<64, kDocuments>()
    : width == 96 ? f.template operator()<96, kDocuments>()
                  : f.template operator()<128, kDocuments>();
  });
}

// Whether forward and dq have registers for the fragments of a warp's 16 kM owned rows. Else these
// are read from shared memory again for each tile of streamed rows, as in dkv, whose sums alone
// take 128 registers.
template <int kM, int kWidth>
inline constexpr bool kHeld = kWidth <= 128 / kM;

// The first of the 16 kM rows of this warp, relative to the block's first row.
template <int kM>
__device__ int warp_row() {
  return static_cast<int>(threadIdx.x) / kWarp * 16 * kM;
}

// Rows of one head in qkv or its gradient [batch, length, row].
template <class T>
__device__ mma::Rows<T> head_rows(Global<T> qkv, const AttentionSizes& sizes, int64_t b,
                                  int64_t head) {
  return {qkv + sizes.qkv_at(b, head), sizes.row(), static_cast<int>(sizes.length)};
}

// Rows of one head in y or its gradient [batch, length, heads * width].
template <class T>
__device__ mma::Rows<T> output_rows(Global<T> y, const AttentionSizes& sizes, int64_t b,
                                    int64_t head) {
  return {y + sizes.y_at(b, head), sizes.heads * sizes.width, static_cast<int>(sizes.length)};
}

// The sum and the maximum over the four lanes that share a row.
__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

__device__ inline float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

// Scores for which sees(m, n, i) is false become -inf.
template <int kM, int kN, class F>
__device__ void keep_seen(mma::Sums<kM, kN>& scores, F sees) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[m][n][i] = sees(m, n, i) ? scores[m][n][i] : -INFINITY;
      }
    }
  }
}

// Leaves out keys after their query. `row` and `column` are the positions of the first score; rows
// are queries or keys.
template <bool kRowsAreKeys, int kM, int kN>
__device__ void mask(mma::Sums<kM, kN>& scores, int row, int column) {
  const int distance = row - column;
  keep_seen(scores, [&](int m, int n, int i) {
    const int below = distance + m * 16 + mma::row_of(i) - n * 8 - mma::column_of(i);
    return kRowsAreKeys ? below <= 0 : below >= 0;
  });
}

// Leaves out keys before their query's document. The first score is of key `key`; start(m, n, i) is
// the first key of the document of the query of score i.
template <bool kRowsAreKeys, int kM, int kN, class F>
__device__ void mask_documents(mma::Sums<kM, kN>& scores, int key, F start) {
  keep_seen(scores, [&](int m, int n, int i) {
    const int at = key + (kRowsAreKeys ? m * 16 + mma::row_of(i) : n * 8 + mma::column_of(i));
    return at >= start(m, n, i);
  });
}

// As attention_forward and attention_backward; `delta` is the workspace of the latter. Arrays begin
// at multiples of 16 bytes.
template <class T>
void forward(Cuda device, const AttentionSizes& sizes, const T* qkv, const int32_t* positions, T* y,
             float* log_sum);
template <class T>
void backward(Cuda device, const AttentionSizes& sizes, const T* dy, const T* qkv,
              const int32_t* positions, const T* y, const float* log_sum, float* delta, T* dqkv,
              float beta, float* row_sums);

}  // namespace tandem::flash

// Causal self-attention with grouped key-value heads (Vaswani et al. 2017, arXiv:1706.03762;
// Ainslie et al. 2023, arXiv:2305.13245): y = softmax(Q K^T / sqrt(D), keys up to the query) V.
// Where Context::positions says where documents begin, a query sees the keys of its own only. With
// a sliding window (Beltagy et al. 2020, arXiv:2004.05150; Mistral) it sees its last keys only.
//
// Queries are processed in tiles of rows: the scores of one tile exist at a time, never those of a
// whole head. Forward saves each row's log-sum-exp, and backward computes the scores again (Dao et
// al. 2022, arXiv:2205.14135). There is no dropout on the probabilities.
//
// For bf16 and fp16, results are rounded when they are stored; softmax and sums are f32.
//
// Context::attention chooses between the kernels declared here and those of cuDNN
// (cudnn_attention.h); kAuto means what was measured to be faster (attention_choice.h).
#pragma once

#include "layers/attention/head_layout.h"
#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// The sizes of one call.
struct AttentionSizes : HeadLayout {
  int64_t batch, length;
  // The offset of a head's first element in an array [batch, length, row]; `head` counts query, key
  // and value heads.
  TANDEM_HOST_DEVICE int64_t qkv_at(int64_t b, int64_t head) const {
    return b * length * row() + head * width;
  }
  // The same in [batch, length, heads, width] and in [batch, heads, length].
  TANDEM_HOST_DEVICE int64_t y_at(int64_t b, int64_t head) const {
    return (b * length * heads + head) * width;
  }
  TANDEM_HOST_DEVICE int64_t log_sum_at(int64_t b, int64_t head) const {
    return (b * heads + head) * length;
  }
};

// Throws Error(kConfig) unless these kernels can compute attention of `dtype` on the stream's
// device: those of cuDNN are for GPUs and 16-bit types, and need its library, but not for a dry
// stream.
void require_attention(AttentionKernels kernels, const Stream& stream, DType dtype);

// Throws Error(kInternal) unless qkv is [B, T, layout.row()].
void require_layout(const Variable& qkv, const HeadLayout& layout);

// qkv [B, T, layout.row()]; returns [B, T, heads * width]. A query sees its own key and `window` -
// 1 earlier ones; 0: all.
Variable attention(Context& context, const Variable& qkv, const HeadLayout& layout,
                   int64_t window = 0);

// The pairs of a query and a key that it sees in `length` tokens, halves of those of equal
// position: length^2 / 2 for one document, and less for documents of `document` tokens (0: one) or
// a window.
double seen_pairs(int64_t length, int64_t document, int64_t window);

// The keys and values of the sequences in so many slots. On a GPU [slots, kv_heads, positions,
// width]; on the CPU with both last axes made greater, in an order of their own
// (attention_cache.cpp), in f32 or f64.
struct KeyValueCache {
  Tensor keys, values;
};

// A cache that nothing is written to, for tensors of this dtype.
KeyValueCache key_value_cache(Context& context, const HeadLayout& layout, int64_t slots,
                              int64_t positions, DType dtype);

// Row r of qkv [R, layout.row()] is of the sequence in slot slots[r], at its position
// context.positions[r]; both are i32 [R] on the device, and no two rows have both alike. Writes the
// keys and values of all rows to the cache. Then each query attends to the cached positions of its
// sequence up to its own, in its window. Returns [R, heads * width]. Saves nothing for backward.
// On the CPU a row of the result does not depend on the other rows of other sequences.
Variable attention_cached(Context& context, const Variable& qkv, const HeadLayout& layout,
                          KeyValueCache& cache, const Tensor& slots, int64_t window = 0);

namespace kernels {

// Workspace for attention_forward and attention_backward, in elements. On the CPU it depends on the
// current number of threads.
int64_t attention_workspace(Device device, DType dtype, const AttentionSizes& sizes);

// log_sum [batch, heads, length]: each row's log-sum-exp, as a natural logarithm. The GPU kernels
// support head widths up to 128 and throw Error(kConfig) for wider heads.
//
// positions [batch, length], or null: query t sees keys t - positions[t] to t, instead of 0 to t.
// t - positions[t] never falls along a row.
template <class T>
void attention_forward(Cpu, const T* qkv, const int32_t* positions, T* y, Wide<T>* log_sum,
                       const AttentionSizes& sizes, Wide<T>* workspace);
template <class T>
void attention_forward(Cuda, const T* qkv, const int32_t* positions, T* y, Wide<T>* log_sum,
                       const AttentionSizes& sizes, Wide<T>* workspace);

// dqkv = beta * dqkv + gradient with respect to qkv. The same call gives the same bits every time.
// `row_sums`: null, or [attention_row_chunks, row], which becomes the sums of dqkv over chunks of
// its rows (src/kernels/column_sums.h), for the gradient of a bias before attention.
template <class T>
void attention_backward(Cpu, const T* dy, const T* qkv, const int32_t* positions, const T* y,
                        const Wide<T>* log_sum, T* dqkv, Wide<T> beta, const AttentionSizes& sizes,
                        Wide<T>* workspace, Wide<T>* row_sums);
template <class T>
void attention_backward(Cuda, const T* dy, const T* qkv, const int32_t* positions, const T* y,
                        const Wide<T>* log_sum, T* dqkv, Wide<T> beta, const AttentionSizes& sizes,
                        Wide<T>* workspace, Wide<T>* row_sums);

// Whether a GPU computes this on tensor cores, if the arrays are aligned to 16 bytes.
constexpr bool attention_on_tensor_cores(DType dtype, int64_t width) {
  return (dtype == DType::kBf16 || dtype == DType::kFp16) &&
         (width == 64 || width == 96 || width == 128);
}

// Chunks of up to 64 positions of a sequence; 0 where attention_backward gives no row_sums, because
// only the kernels on tensor cores do.
inline constexpr int kAttentionSumRows = 64;
constexpr int64_t attention_row_chunks(Device device, DType dtype, int64_t batch, int64_t length,
                                       int64_t width) {
  const bool sums = device == Device::kCuda && attention_on_tensor_cores(dtype, width);
  return sums ? batch * ((length + kAttentionSumRows - 1) / kAttentionSumRows) : 0;
}

// seen [batch, length]: how many tokens before its own each query sees, at most window - 1: those
// that `positions` of attention_forward says, or if it is null those of the sequence.
void limit_to_window(Cuda, const int32_t* positions, int32_t* seen, const AttentionSizes& sizes,
                     int64_t window);

// `rows` queries of sequences in a cache.
struct CacheSizes : HeadLayout {
  int64_t rows, capacity, columns, window;  // capacity, columns: the last axes of the cache
  // The keys that the query at a position sees.
  TANDEM_HOST_DEVICE Range keys(int64_t position) const {
    const int64_t count = position + 1;
    return {window > 0 && window < count ? count - window : 0, count};
  }
  // The element of keys and values where those of a head begin.
  TANDEM_HOST_DEVICE int64_t at(int64_t slot, int64_t kv_head) const {
    return (slot * kv_heads + kv_head) * capacity * columns;
  }
};

// The slots and positions [rows] of rows.
struct CachePlaces {
  const int32_t *slots, *positions;
};

// Copies the keys and values of qkv [rows, row] to their places in the cache. (The CPU's functions
// are in attention_cache.cpp alone.)
template <class T>
void cache_append(Cuda, const T* qkv, const CachePlaces& places, T* keys, T* values,
                  const CacheSizes& sizes);

// Workspace for attention_from_cache, in elements. On the CPU it depends on the current number of
// threads.
int64_t attention_from_cache_workspace(Device device, const CacheSizes& sizes);

// Attention of the queries of qkv [rows, row] to a cache that already contains their own keys. y
// [rows, heads * width].
template <class T>
void attention_from_cache(Cuda, const T* qkv, const CachePlaces& places, const T* keys,
                          const T* values, T* y, const CacheSizes& sizes, Wide<T>* workspace);

}  // namespace kernels
}  // namespace tandem

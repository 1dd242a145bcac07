// Causal self-attention with grouped key-value heads (Vaswani et al. 2017, arXiv:1706.03762;
// Ainslie et al. 2023, arXiv:2305.13245): y = softmax(Q K^T / sqrt(D), keys up to the query) V.
//
// Queries are taken in tiles of rows: the scores of one tile exist at a time, never those of a
// whole head. Forward saves the logarithm of each row's sum of exponentials, and backward computes
// the scores again (Dao et al. 2022, arXiv:2205.14135). The probabilities have no dropout.
//
// bf16 and fp16 are rounded where they are stored; softmax and sums are in f32.
#pragma once

#include "layers/module.h"

namespace tandem {

// How the last axis of a fused projection [B, T, (heads + 2 * kv_heads) * width] is divided: query
// heads, then key heads, then value heads. Query head h reads key-value head h / (heads /
// kv_heads).
struct HeadLayout {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t width = 1;  // of one head, D
  int64_t row() const { return (heads + 2 * kv_heads) * width; }
};

// qkv [B, T, layout.row()]; returns [B, T, heads * width].
Variable attention(Context& context, const Variable& qkv, const HeadLayout& layout);

// Keys and values of the positions so far, of one sequence.
struct KeyValueCache {
  Tensor keys, values;  // [kv_heads, capacity, width]
  int64_t length = 0;   // positions held
};

// Appends the keys and values of qkv [1, T, layout.row()] to the cache and attends from its queries
// to everything in it. Returns [1, T, heads * width]. Remembers nothing for backward.
Variable attention_cached(Context& context, const Variable& qkv, const HeadLayout& layout,
                          KeyValueCache& cache);

namespace kernels {

// Elements of workspace for attention_forward and attention_backward; on the CPU for the present
// number of threads.
int64_t attention_workspace(Device device, DType dtype, int64_t batch, int64_t length,
                            int64_t heads, int64_t width);

// log_sum [batch, heads, length], natural logarithms. The kernels of a GPU take widths up to 128
// and throw Error(kConfig) for wider heads.
template <class T>
void attention_forward(Cpu, const T* qkv, T* y, Wide<T>* log_sum, int64_t batch, int64_t length,
                       int64_t heads, int64_t kv_heads, int64_t width, Wide<T>* workspace);
template <class T>
void attention_forward(Cuda, const T* qkv, T* y, Wide<T>* log_sum, int64_t batch, int64_t length,
                       int64_t heads, int64_t kv_heads, int64_t width, Wide<T>* workspace);

// dqkv = beta * dqkv + the gradient by qkv. The same call gives the same bits every time.
template <class T>
void attention_backward(Cpu, const T* dy, const T* qkv, const T* y, const Wide<T>* log_sum, T* dqkv,
                        Wide<T> beta, int64_t batch, int64_t length, int64_t heads,
                        int64_t kv_heads, int64_t width, Wide<T>* workspace);
template <class T>
void attention_backward(Cuda, const T* dy, const T* qkv, const T* y, const Wide<T>* log_sum,
                        T* dqkv, Wide<T> beta, int64_t batch, int64_t length, int64_t heads,
                        int64_t kv_heads, int64_t width, Wide<T>* workspace);

// Copies the keys and values of qkv [length, row] to positions [first, first + length) of keys and
// values [kv_heads, capacity, width].
template <class T>
void cache_append(Cpu, const T* qkv, T* keys, T* values, int64_t first, int64_t length,
                  int64_t capacity, int64_t heads, int64_t kv_heads, int64_t width);
template <class T>
void cache_append(Cuda, const T* qkv, T* keys, T* values, int64_t first, int64_t length,
                  int64_t capacity, int64_t heads, int64_t kv_heads, int64_t width);

// Elements of workspace for attention_from_cache; positions: held by the cache.
int64_t attention_from_cache_workspace(Device device, int64_t positions, int64_t heads,
                                       int64_t width);

// Attention from the queries of qkv [length, row], at positions [first, first + length), to a cache
// that holds these positions already.
template <class T>
void attention_from_cache(Cpu, const T* qkv, const T* keys, const T* values, T* y, int64_t first,
                          int64_t length, int64_t capacity, int64_t heads, int64_t kv_heads,
                          int64_t width, Wide<T>* workspace);
template <class T>
void attention_from_cache(Cuda, const T* qkv, const T* keys, const T* values, T* y, int64_t first,
                          int64_t length, int64_t capacity, int64_t heads, int64_t kv_heads,
                          int64_t width, Wide<T>* workspace);

}  // namespace kernels
}  // namespace tandem

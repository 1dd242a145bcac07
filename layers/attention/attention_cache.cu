// Attention to a cache of keys and values, on a GPU. There are few queries, so each query has a
// block of its own. The block's rows of threads divide the keys.
#include "layers/attention/attention.h"
#include "layers/attention/attention_tile.cuh"
#include "src/device/ptx.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

using namespace attention_tile;

template <class T>
__global__ void __launch_bounds__(kThreads)
    cache_append_kernel(int64_t n, int64_t row, int64_t k_at, int64_t v_at, int64_t first,
                        int64_t capacity, int64_t kv_width, int64_t width, Global<const T> qkv,
                        Global<T> keys, Global<T> values) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) {
    return;
  }
  const int64_t t = i / kv_width, column = i % kv_width;
  const int64_t to = (column / width * capacity + first + t) * width + column % width;
  keys.store(to, qkv.load(t * row + k_at + column));
  values.store(to, qkv.load(t * row + v_at + column));
}

// The results of the block's rows of threads; each row takes every kDown-th key.
template <int kWidth>
struct Partial {
  float largest[kDown], total[kDown];
  float sums[kDown][kWidth];
};

// The query, which is row 0 of `q`, attends to keys down(), down() + kDown, ...
template <class T, int kWidth>
__device__ void attend(const Rows<const T>& q, const Rows<const T>& k, const Rows<const T>& v,
                       float exponent_scale, Partial<kWidth>& partial) {
  constexpr int kRuns = (kWidth + kPack<T> * kAcross - 1) / (kPack<T> * kAcross);
  const auto column = [](int r) { return (across() + r * kAcross) * kPack<T>; };
  Pack<T> query[kRuns];
  float sums[kRuns][kPack<T>] = {}, largest = -INFINITY, total = 0;
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
    query[r] = load_run(q, 0, column(r));
  }
  for (int64_t first = 0; first < k.count; first += kDown) {
    float score = 0;
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const Pack<T> key = load_run(k, first + down(), column(r));
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        score += float(query[r][j]) * float(key[j]);
      }
    }
    score = row_sum(score) * exponent_scale;
    if (first + down() < k.count) {
      const float before = largest;
      largest = fmaxf(largest, score);
      const float factor = ptx::exp2(before - largest), weight = ptx::exp2(score - largest);
      total = total * factor + weight;
#pragma unroll
      for (int r = 0; r < kRuns; ++r) {
        const Pack<T> value = load_run(v, first + down(), column(r));
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) {
          sums[r][j] = sums[r][j] * factor + weight * float(value[j]);
        }
      }
    }
  }
  partial.largest[down()] = largest;
  partial.total[down()] = total;
#pragma unroll
  for (int r = 0; r < kRuns; ++r) {
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) {
      if (column(r) < kWidth) {
        partial.sums[down()][column(r) + j] = sums[r][j];
      }
    }
  }
}

// One block for each query of each head. sizes.batch is 1; sizes.length is the number of queries.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cached_attention_kernel(Sizes sizes, int64_t first, int64_t capacity, bool vector,
                            float exponent_scale, Global<const T> qkv, Global<const T> keys,
                            Global<const T> values, Global<T> y) {
  auto& partial = shared<Partial<kWidth>>();
  const int64_t t = blockIdx.x / sizes.heads, h = blockIdx.x % sizes.heads;
  const int width = static_cast<int>(sizes.width);
  const int64_t at = h / sizes.group() * capacity * width, count = first + t + 1;
  attend<T, kWidth>({qkv + t * sizes.row() + h * width, sizes.row(), 1, width, vector},
                    {keys + at, width, count, width, vector},
                    {values + at, width, count, width, vector}, exponent_scale, partial);
  __syncthreads();
  float largest = partial.largest[0];
  for (int d = 1; d < kDown; ++d) {
    largest = fmaxf(largest, partial.largest[d]);
  }
  const int column = static_cast<int>(threadIdx.x);
  if (column >= width) {
    return;
  }
  float total = 0, sum = 0;
  for (int d = 0; d < kDown; ++d) {
    const float factor = ptx::exp2(partial.largest[d] - largest);
    total += factor * partial.total[d];
    sum += factor * partial.sums[d][column];
  }
  y.store((t * sizes.heads + h) * width + column, T(sum / total));
}

}  // namespace

template <class T>
void cache_append(Cuda device, const T* qkv, T* keys, T* values, int64_t first, int64_t length,
                  int64_t capacity, int64_t heads, int64_t kv_heads, int64_t width) {
  const int64_t kv_width = kv_heads * width, n = length * kv_width;
  if (n > 0) {
    launch<cache_append_kernel<T>>(device, blocks_for(n, kThreads), kThreads, 0, n,
                                   (heads + 2 * kv_heads) * width, heads * width,
                                   (heads + kv_heads) * width, first, capacity, kv_width, width,
                                   qkv, keys, values);
  }
}

template <class T>
void attention_from_cache(Cuda device, const T* qkv, const T* keys, const T* values, T* y,
                          int64_t first, int64_t length, int64_t capacity, int64_t heads,
                          int64_t kv_heads, int64_t width, Wide<T>*) {
  if (length * heads == 0) {
    return;
  }
  with_width(width, [&]<int kWidth>() {
    launch<cached_attention_kernel<T, kWidth>>(
        device, static_cast<unsigned>(length * heads), kThreads, 0,
        Sizes{1, length, heads, kv_heads, width}, first, capacity,
        packs_fit(width, qkv, keys, values), scale_of(width) * kLog2E, qkv, keys, values, y);
  });
}

template void cache_append<float>(Cuda, const float*, float*, float*, int64_t, int64_t, int64_t,
                                  int64_t, int64_t, int64_t);
template void cache_append<Bf16>(Cuda, const Bf16*, Bf16*, Bf16*, int64_t, int64_t, int64_t,
                                 int64_t, int64_t, int64_t);
template void cache_append<Fp16>(Cuda, const Fp16*, Fp16*, Fp16*, int64_t, int64_t, int64_t,
                                 int64_t, int64_t, int64_t);
template void attention_from_cache<float>(Cuda, const float*, const float*, const float*, float*,
                                          int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                          float*);
template void attention_from_cache<Bf16>(Cuda, const Bf16*, const Bf16*, const Bf16*, Bf16*,
                                         int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                         float*);
template void attention_from_cache<Fp16>(Cuda, const Fp16*, const Fp16*, const Fp16*, Fp16*,
                                         int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                         float*);

}  // namespace tandem::kernels

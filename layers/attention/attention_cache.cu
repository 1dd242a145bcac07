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
    cache_append_kernel(int64_t n, CacheSizes sizes, Global<const T> qkv,
                        Global<const int32_t> slots, Global<const int32_t> positions,
                        Global<T> keys, Global<T> values) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) {
    return;
  }
  const int64_t width = sizes.width, kv_width = sizes.kv_heads * width;
  const int64_t row = i / kv_width, column = i % kv_width;
  const int64_t to =
      sizes.at(slots.load(row), column / width) + positions.load(row) * width + column % width;
  const int64_t key = row * sizes.row() + sizes.heads * width + column;
  keys.store(to, qkv.load(key));
  values.store(to, qkv.load(key + kv_width));
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

// One block for each query of each head.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    cached_attention_kernel(CacheSizes sizes, bool vector, float exponent_scale,
                            Global<const T> qkv, Global<const int32_t> slots,
                            Global<const int32_t> positions, Global<const T> keys,
                            Global<const T> values, Global<T> y) {
  auto& partial = shared<Partial<kWidth>>();
  const int64_t row = blockIdx.x / sizes.heads, h = blockIdx.x % sizes.heads;
  const Range seen = sizes.keys(positions.load(row));
  const int width = static_cast<int>(sizes.width);
  const int64_t at = sizes.at(slots.load(row), h / sizes.group()) + seen.begin * width;
  const int64_t count = seen.count();
  attend<T, kWidth>({qkv + row * sizes.row() + h * width, sizes.row(), 1, width, vector},
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
  y.store((row * sizes.heads + h) * width + column, T(sum / total));
}

}  // namespace

template <class T>
void cache_append(Cuda device, const T* qkv, const CachePlaces& places, T* keys, T* values,
                  const CacheSizes& sizes) {
  const int64_t n = sizes.rows * sizes.kv_heads * sizes.width;
  if (n > 0) {
    launch<cache_append_kernel<T>>(device, blocks_for(n, kThreads), kThreads, 0, n, sizes, qkv,
                                   places.slots, places.positions, keys, values);
  }
}

template <class T>
void attention_from_cache(Cuda device, const T* qkv, const CachePlaces& places, const T* keys,
                          const T* values, T* y, const CacheSizes& sizes, Wide<T>*) {
  const int64_t queries = sizes.rows * sizes.heads;
  if (queries == 0) {
    return;
  }
  with_width(sizes.width, [&]<int kWidth>() {
    launch<cached_attention_kernel<T, kWidth>>(device, static_cast<unsigned>(queries), kThreads, 0,
                                               sizes, packs_fit(sizes.width, qkv, keys, values),
                                               scale_of(sizes.width) * kLog2E, qkv, places.slots,
                                               places.positions, keys, values, y);
  });
}

#define TANDEM_CACHE(T)                                                                         \
  template void cache_append<T>(Cuda, const T*, const CachePlaces&, T*, T*, const CacheSizes&); \
  template void attention_from_cache<T>(Cuda, const T*, const CachePlaces&, const T*, const T*, \
                                        T*, const CacheSizes&, float*);
TANDEM_FOR_GPU(TANDEM_CACHE)

}  // namespace tandem::kernels

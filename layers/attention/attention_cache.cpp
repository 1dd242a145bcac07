// Attention to a cache of keys and values: the layer, and its kernels on the CPU.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "layers/attention/attention.h"
#include "src/core/math.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

namespace {

// to[i] = <q, row i of k> for four rows, whose sums do not wait for each other.
template <class T>
void four_dots(const T* q, const T* k, int64_t width, Wide<T>* to) {
  using W = Wide<T>;
  W a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < width; ++i) {
    a += W(q[i]) * W(k[i]);
    b += W(q[i]) * W(k[width + i]);
    c += W(q[i]) * W(k[2 * width + i]);
    d += W(q[i]) * W(k[3 * width + i]);
  }
  to[0] = a, to[1] = b, to[2] = c, to[3] = d;
}

template <class T>
Wide<T> dot(const T* a, const T* b, int64_t n) {
  Wide<T> total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) {
    total += Wide<T>(a[i]) * Wide<T>(b[i]);
  }
  return total;
}

// out = softmax(<q, k>, keys) v for `count` keys. scores [count] and sums [width] are scratch.
template <class T>
void attend(const T* q, const T* k, const T* v, int64_t count, int64_t width, T* out,
            Wide<T>* scores, Wide<T>* sums) {
  using W = Wide<T>;
  const W scale = W(1) / std::sqrt(static_cast<W>(width));
  const int64_t fours = count / 4 * 4;
  for (int64_t j = 0; j < fours; j += 4) {
    four_dots(q, k + j * width, width, scores + j);
  }
  for (int64_t j = fours; j < count; ++j) {
    scores[j] = dot(q, k + j * width, width);
  }
  const W largest = *std::max_element(scores, scores + count);
  W total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = math::exp((scores[j] - largest) * scale);
    total += scores[j];
  }
  std::fill_n(sums, width, W(0));
  for (int64_t j = 0; j < fours; j += 4) {
    const T* row = v + j * width;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) {
      sums[d] += scores[j] * W(row[d]) + scores[j + 1] * W(row[width + d]) +
                 (scores[j + 2] * W(row[2 * width + d]) + scores[j + 3] * W(row[3 * width + d]));
    }
  }
  for (int64_t j = fours; j < count; ++j) {
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) {
      sums[d] += scores[j] * W(v[j * width + d]);
    }
  }
  for (int64_t d = 0; d < width; ++d) {
    out[d] = T(sums[d] / total);
  }
}

}  // namespace

template <class T>
void cache_append(Cpu, const T* qkv, const CachePlaces& places, T* keys, T* values,
                  const CacheSizes& sizes) {
  const int64_t width = sizes.width;
  for (int64_t row = 0; row < sizes.rows; ++row) {
    const T* key = qkv + row * sizes.row() + sizes.heads * width;
    for (int64_t g = 0; g < sizes.kv_heads; ++g, key += width) {
      const int64_t to = sizes.at(places.slots[row], g) + places.positions[row] * width;
      std::copy_n(key, width, keys + to);
      std::copy_n(key + sizes.kv_heads * width, width, values + to);
    }
  }
}

int64_t attention_from_cache_workspace(Device device, const CacheSizes& sizes) {
  return device == Device::kCpu ? omp_get_max_threads() * (sizes.capacity + sizes.width) : 0;
}

template <class T>
void attention_from_cache(Cpu, const T* qkv, const CachePlaces& places, const T* keys,
                          const T* values, T* y, const CacheSizes& sizes, Wide<T>* workspace) {
  using W = Wide<T>;
  const int64_t width = sizes.width, heads = sizes.heads;
  int64_t pairs = 0;
  for (int64_t row = 0; row < sizes.rows; ++row) {
    pairs += sizes.keys(places.positions[row]).count();
  }
  // A thread takes heads one after another, so that the rows of one sequence find the keys of a
  // head in the processor's cache.
#pragma omp parallel for schedule(static) if (pairs * heads * width >= 8 * kParallelElements)
  for (int64_t i = 0; i < heads * sizes.rows; ++i) {
    const int64_t h = i / sizes.rows, row = i % sizes.rows;
    const int64_t at = sizes.at(places.slots[row], h / sizes.group());
    W* sums = workspace + omp_get_thread_num() * (sizes.capacity + width);
    W* scores = sums + width;
    const T* q = qkv + row * sizes.row() + h * width;
    const Range seen = sizes.keys(places.positions[row]);
    attend(q, keys + at + seen.begin * width, values + at + seen.begin * width, seen.count(), width,
           y + (row * heads + h) * width, scores, sums);
  }
}

}  // namespace kernels

Variable attention_cached(Context& context, const Variable& qkv, const HeadLayout& layout,
                          KeyValueCache& cache, const Tensor& slots, int64_t window) {
  const Shape shape = qkv.shape();
  const int64_t rows = shape[0];
  require(!context.tape && shape.rank() == 2 && shape[1] == layout.row() &&
              slots.elements() == rows && context.positions.elements() == rows,
          [&] { return str("attention_cached: qkv ", shape, " in ", slots.shape(), " slots"); });
  const kernels::CacheSizes sizes{layout, rows, cache.keys.shape()[2], window};
  const kernels::CachePlaces places{slots.data<int32_t>(), context.positions.data<int32_t>()};
  Tensor y = context.activation({rows, layout.heads * layout.width}, qkv.dtype());
  const Tensor workspace =
      context.workspace({kernels::attention_from_cache_workspace(context.stream.device(), sizes)},
                        wide_of(qkv.dtype()));
  const Work work = touching(qkv.value(), cache.keys, cache.values, y);
  on_device(context.stream, work, qkv.dtype(), [&]<class T>(auto device) {
    T *keys = cache.keys.data<T>(), *values = cache.values.data<T>();
    kernels::cache_append(device, qkv.data<T>(), places, keys, values, sizes);
    kernels::attention_from_cache(device, qkv.data<T>(), places, keys, values, y.data<T>(), sizes,
                                  workspace.data<Wide<T>>());
  });
  return Variable(std::move(y));
}

}  // namespace tandem

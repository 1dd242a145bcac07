// Attention to a cache of keys and values: the layer, and its kernels on the CPU.
#include <algorithm>
#include <cmath>

#include "layers/attention/attention.h"
#include "src/core/math.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

namespace {

template <class T>
Wide<T> dot(const T* a, const T* b, int64_t n) {
  Wide<T> total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) {
    total += Wide<T>(a[i]) * Wide<T>(b[i]);
  }
  return total;
}

}  // namespace

template <class T>
void cache_append(Cpu, const T* qkv, T* keys, T* values, const CacheSizes& sizes) {
  const int64_t width = sizes.width;
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t g = 0; g < sizes.kv_heads; ++g) {
      for (int64_t t = 0; t < sizes.length; ++t) {
        const T* key = qkv + sizes.qkv_at(b, sizes.heads + g) + t * sizes.row();
        const int64_t to = ((b * sizes.kv_heads + g) * sizes.capacity + sizes.first + t) * width;
        std::copy_n(key, width, keys + to);
        std::copy_n(key + sizes.kv_heads * width, width, values + to);
      }
    }
  }
}

int64_t attention_from_cache_workspace(Device device, const CacheSizes& sizes) {
  return device == Device::kCpu ? sizes.batch * sizes.heads * (sizes.end() + sizes.width) : 0;
}

template <class T>
void attention_from_cache(Cpu, const T* qkv, const T* keys, const T* values, T* y,
                          const CacheSizes& sizes, Wide<T>* workspace) {
  using W = Wide<T>;
  const int64_t width = sizes.width, heads = sizes.heads, end = sizes.end();
  const W scale = W(1) / std::sqrt(static_cast<W>(width));
#pragma omp parallel for schedule(static) if (sizes.batch * heads * sizes.length * end * width >= \
                                              8 * kParallelElements)
  for (int64_t i = 0; i < sizes.batch * heads; ++i) {
    const int64_t b = i / heads, h = i % heads;
    const int64_t at = (b * sizes.kv_heads + h / sizes.group()) * sizes.capacity * width;
    const T *k = keys + at, *v = values + at;
    W* scores = workspace + i * (end + width);
    W* sums = scores + end;
    for (int64_t t = 0; t < sizes.length; ++t) {
      const int64_t row = b * sizes.length + t;
      const T* q = qkv + row * sizes.row() + h * width;
      T* out = y + (row * heads + h) * width;
      const auto [begin, end_of_keys] = sizes.keys(t);
      for (int64_t j = begin; j < end_of_keys; ++j) {
        scores[j] = dot(q, k + j * width, width) * scale;
      }
      const W largest = *std::max_element(scores + begin, scores + end_of_keys);
      W total = 0;
      std::fill_n(sums, width, W(0));
      for (int64_t j = begin; j < end_of_keys; ++j) {
        const W weight = math::exp(scores[j] - largest);
        total += weight;
#pragma omp simd
        for (int64_t d = 0; d < width; ++d) {
          sums[d] += weight * W(v[j * width + d]);
        }
      }
      for (int64_t d = 0; d < width; ++d) {
        out[d] = T(sums[d] / total);
      }
    }
  }
}

}  // namespace kernels

Variable attention_cached(Context& context, const Variable& qkv, const HeadLayout& layout,
                          KeyValueCache& cache, int64_t window) {
  require_layout(qkv, layout);
  const int64_t batch = qkv.shape()[0], length = qkv.shape()[1];
  const kernels::CacheSizes sizes{
      {layout, batch, length}, cache.length, cache.keys.shape()[2], window};
  require(!context.tape && batch == cache.keys.shape()[0] && sizes.end() <= sizes.capacity, [&] {
    return str("attention_cached: qkv ", qkv.shape(), " after ", cache.length,
               " positions of keys ", cache.keys.shape());
  });
  cache.length = sizes.end();
  const int64_t rows = batch * length * 2 * layout.kv_heads;
  const Tensor added = qkv.value().slice(0, rows * layout.width);
  on_device(context.stream, touching(added, added), qkv.dtype(), [&]<class T>(auto device) {
    kernels::cache_append(device, qkv.data<T>(), cache.keys.data<T>(), cache.values.data<T>(),
                          sizes);
  });
  if (sizes.first == 0) {
    return attention(context, qkv, layout, window);
  }
  Tensor y = context.activation({batch, length, layout.heads * layout.width}, qkv.dtype());
  const Tensor workspace =
      context.workspace({kernels::attention_from_cache_workspace(context.stream.device(), sizes)},
                        wide_of(qkv.dtype()));
  const Tensor read = cache.keys.slice(0, cache.keys.elements() / sizes.capacity * sizes.end());
  const Work work = touching(qkv.value(), read, read, y);
  on_device(context.stream, work, qkv.dtype(), [&]<class T>(auto device) {
    kernels::attention_from_cache(device, qkv.data<T>(), cache.keys.data<T>(),
                                  cache.values.data<T>(), y.data<T>(), sizes,
                                  workspace.data<Wide<T>>());
  });
  return Variable(std::move(y));
}

}  // namespace tandem

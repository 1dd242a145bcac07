// Attention to a cache of keys and values, on the CPU.
#include <algorithm>
#include <cmath>

#include "layers/attention/attention.h"
#include "src/core/math.h"
#include "src/kernels/map.h"

namespace tandem::kernels {

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
void cache_append(Cpu, const T* qkv, T* keys, T* values, int64_t first, int64_t length,
                  int64_t capacity, int64_t heads, int64_t kv_heads, int64_t width) {
  const int64_t row = (heads + 2 * kv_heads) * width;
  for (int64_t g = 0; g < kv_heads; ++g) {
    for (int64_t t = 0; t < length; ++t) {
      const T* key = qkv + t * row + (heads + g) * width;
      const int64_t to = (g * capacity + first + t) * width;
      std::copy_n(key, width, keys + to);
      std::copy_n(key + kv_heads * width, width, values + to);
    }
  }
}

int64_t attention_from_cache_workspace(Device device, int64_t positions, int64_t heads,
                                       int64_t width) {
  return device == Device::kCpu ? heads * (positions + width) : 0;
}

template <class T>
void attention_from_cache(Cpu, const T* qkv, const T* keys, const T* values, T* y, int64_t first,
                          int64_t length, int64_t capacity, int64_t heads, int64_t kv_heads,
                          int64_t width, Wide<T>* workspace) {
  using W = Wide<T>;
  const int64_t row = (heads + 2 * kv_heads) * width, group = heads / kv_heads;
  const int64_t end = first + length;
  const W scale = W(1) / std::sqrt(static_cast<W>(width));
#pragma omp parallel for schedule(static) if (heads * length * end * width >= 8 * kParallelElements)
  for (int64_t h = 0; h < heads; ++h) {
    const T* k = keys + h / group * capacity * width;
    const T* v = values + h / group * capacity * width;
    W* scores = workspace + h * (end + width);
    W* sums = scores + end;
    for (int64_t t = 0; t < length; ++t) {
      const T* q = qkv + t * row + h * width;
      T* out = y + (t * heads + h) * width;
      const int64_t count = first + t + 1;
      for (int64_t j = 0; j < count; ++j) {
        scores[j] = dot(q, k + j * width, width) * scale;
      }
      const W largest = *std::max_element(scores, scores + count);
      W total = 0;
      std::fill_n(sums, width, W(0));
      for (int64_t j = 0; j < count; ++j) {
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

template void cache_append<float>(Cpu, const float*, float*, float*, int64_t, int64_t, int64_t,
                                  int64_t, int64_t, int64_t);
template void attention_from_cache<float>(Cpu, const float*, const float*, const float*, float*,
                                          int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                          float*);
template void cache_append<double>(Cpu, const double*, double*, double*, int64_t, int64_t, int64_t,
                                   int64_t, int64_t, int64_t);
template void attention_from_cache<double>(Cpu, const double*, const double*, const double*,
                                           double*, int64_t, int64_t, int64_t, int64_t, int64_t,
                                           int64_t, double*);
template void cache_append<Bf16>(Cpu, const Bf16*, Bf16*, Bf16*, int64_t, int64_t, int64_t, int64_t,
                                 int64_t, int64_t);
template void attention_from_cache<Bf16>(Cpu, const Bf16*, const Bf16*, const Bf16*, Bf16*, int64_t,
                                         int64_t, int64_t, int64_t, int64_t, int64_t, float*);
template void cache_append<Fp16>(Cpu, const Fp16*, Fp16*, Fp16*, int64_t, int64_t, int64_t, int64_t,
                                 int64_t, int64_t);
template void attention_from_cache<Fp16>(Cpu, const Fp16*, const Fp16*, const Fp16*, Fp16*, int64_t,
                                         int64_t, int64_t, int64_t, int64_t, int64_t, float*);

}  // namespace tandem::kernels

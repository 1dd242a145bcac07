// Attention to a cache of keys and values: the layer, and its kernels on the CPU.
//
// The CPU's cache is in f32 or f64, in the order of a matrix product's panels
// (src/product/gemm_tile.h): keys [positions / P, width, P] and values [columns / P, positions, P],
// where P is kTileColumns. Queries that see the keys of one head go through the products together,
// as many as a tile has rows. Each sum is in the order of the width or of the positions, and a key
// that only the others see has weight 0, so a query's result has the same bits alone or among
// others.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "layers/attention/attention.h"
#include "src/core/math.h"
#include "src/kernels/map.h"
#include "src/product/gemm_tile.h"

namespace tandem {

namespace kernels {

namespace {

// Queries of rows that follow each other in one slot: number n is head n % group of row n / group.
struct Queries {
  int64_t first, count;  // at most kTileRows
};

std::vector<Queries> tiles_of(const CachePlaces& places, const CacheSizes& sizes) {
  std::vector<Queries> tiles;
  for (int64_t row = 0, end = 0; row < sizes.rows; row = end) {
    while (end < sizes.rows && places.slots[end] == places.slots[row]) {
      ++end;
    }
    const int64_t last = end * sizes.group();
    for (int64_t first = row * sizes.group(); first < last; first += kTileRows) {
      tiles.push_back({first, std::min<int64_t>(kTileRows, last - first)});
    }
  }
  return tiles;
}

// Replaces the scores of keys that are `seen` by exp(score - the largest of them), those of others
// by 0. Returns their sum. Panels of scores lie `step` apart; the first has that of key `begin`.
template <class W>
W exponentiate(W* scores, int64_t step, int64_t panels, int64_t begin, Range seen) {
  constexpr int64_t kPanel = kTileColumns<W>;
  constexpr W kUnseen = -std::numeric_limits<W>::infinity();
  W largest = kUnseen, sums[kPanel] = {}, total = 0;
  for (int64_t p = 0; p < panels; ++p) {
    W* panel = scores + p * step;
    const int64_t base = begin + p * kPanel;
    const int64_t from = std::clamp<int64_t>(seen.begin - base, 0, kPanel),
                  to = std::clamp<int64_t>(seen.end - base, 0, kPanel);
    std::fill(panel, panel + from, kUnseen);
    std::fill(panel + to, panel + kPanel, kUnseen);
    largest = std::max(largest, *std::max_element(panel, panel + kPanel));
  }
  for (int64_t p = 0; p < panels; ++p) {
    W* panel = scores + p * step;
#pragma omp simd
    for (int64_t j = 0; j < kPanel; ++j) {
      panel[j] = math::exp(panel[j] - largest);
      sums[j] += panel[j];
    }
  }
  for (const W sum : sums) {
    total += sum;
  }
  return total;
}

// y = softmax(<q, k> / sqrt(width)) v for queries of one key-value head.
template <class T>
void attend(const T* qkv, const int32_t* positions, const Wide<T>* keys, const Wide<T>* values,
            T* y, const CacheSizes& sizes, int64_t kv_head, Queries tile, Wide<T>* workspace) {
  using W = Wide<T>;
  constexpr int64_t kPanel = kTileColumns<W>;
  const int64_t width = sizes.width, group = sizes.group(), count = tile.count;
  W* q = workspace;                             // [width, kTileRows]
  W* out = q + width * kTileRows;               // [kTileRows, columns]
  W* scores = out + kTileRows * sizes.columns;  // [panels, count, kPanel]
  Range all{sizes.capacity, 0};
  const auto row = [&](int64_t i) { return (tile.first + i) / group; };
  const auto head = [&](int64_t i) { return kv_head * group + (tile.first + i) % group; };
  for (int64_t i = 0; i < count; ++i) {
    const Range seen = sizes.keys(positions[row(i)]);
    all = {std::min(all.begin, seen.begin / kPanel * kPanel), std::max(all.end, seen.end)};
    const T* from = qkv + row(i) * sizes.row() + head(i) * width;
    for (int64_t d = 0; d < width; ++d) {
      q[d * kTileRows + i] = W(from[d]);
    }
  }
  const W scale = W(1) / std::sqrt(static_cast<W>(width));
  const int64_t panels = (all.count() + kPanel - 1) / kPanel, step = count * kPanel;
  for (int64_t p = 0; p < panels; ++p) {
    tile_kernel<W, 1, kTileRows>(count, kPanel)(q, keys + (all.begin + p * kPanel) * width, width,
                                                {scores + p * step, kPanel, scale, W(0)}, kPanel);
  }
  W totals[kTileRows];
  for (int64_t i = 0; i < count; ++i) {
    totals[i] =
        exponentiate(scores + i * kPanel, step, panels, all.begin, sizes.keys(positions[row(i)]));
  }
  for (int64_t column = 0; column < width; column += kPanel) {
    const W* part = values + column * sizes.capacity;
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t key = all.begin + p * kPanel;
      tile_kernel<W, kPanel, 1>(count, kPanel)(
          scores + p * step, part + key * kPanel, std::min(kPanel, all.end - key),
          {out + column, sizes.columns, W(1), p == 0 ? W(0) : W(1)}, kPanel);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < width; ++d) {
      y[(row(i) * sizes.heads + head(i)) * width + d] = T(out[i * sizes.columns + d] / totals[i]);
    }
  }
}

}  // namespace

template <class T>
void cache_append(Cpu, const T* qkv, const CachePlaces& places, Wide<T>* keys, Wide<T>* values,
                  const CacheSizes& sizes) {
  using W = Wide<T>;
  constexpr int64_t kPanel = kTileColumns<W>;
  const int64_t width = sizes.width;
#pragma omp parallel for schedule(static) if (sizes.rows * sizes.kv_heads * width >= \
                                              kParallelElements)
  for (int64_t g = 0; g < sizes.kv_heads; ++g) {
    for (int64_t row = 0; row < sizes.rows; ++row) {
      const int64_t at = sizes.at(places.slots[row], g), position = places.positions[row];
      const T* key = qkv + row * sizes.row() + (sizes.heads + g) * width;
      const T* value = key + sizes.kv_heads * width;
      W* k = keys + at + position / kPanel * kPanel * width + position % kPanel;
      W* v = values + at + position * kPanel;
      for (int64_t d = 0; d < width; ++d) {
        k[d * kPanel] = W(key[d]);
        v[d / kPanel * kPanel * sizes.capacity + d % kPanel] = W(value[d]);
      }
    }
  }
}

int64_t attention_from_cache_workspace(Device device, const CacheSizes& sizes) {
  return device == Device::kCpu
             ? omp_get_max_threads() * kTileRows * (sizes.width + sizes.columns + sizes.capacity)
             : 0;
}

template <class T>
void attention_from_cache(Cpu, const T* qkv, const CachePlaces& places, const Wide<T>* keys,
                          const Wide<T>* values, T* y, const CacheSizes& sizes,
                          Wide<T>* workspace) {
  const std::vector<Queries> tiles = tiles_of(places, sizes);
  const int64_t count = std::ssize(tiles), group = sizes.group();
  const int64_t one = attention_from_cache_workspace(Device::kCpu, sizes) / omp_get_max_threads();
  int64_t pairs = 0;
  for (int64_t row = 0; row < sizes.rows; ++row) {
    pairs += sizes.keys(places.positions[row]).count();
  }
  // A thread takes heads one after another, so that the tiles of one sequence find the keys of a
  // head in the processor's cache.
#pragma omp parallel for schedule(static) if (pairs * sizes.heads * sizes.width >= \
                                              8 * kParallelElements)
  for (int64_t i = 0; i < sizes.kv_heads * count; ++i) {
    const int64_t g = i / count;
    const Queries tile = tiles[i % count];
    const int64_t at = sizes.at(places.slots[tile.first / group], g);
    attend(qkv, places.positions, keys + at, values + at, y, sizes, g, tile,
           workspace + omp_get_thread_num() * one);
  }
}

}  // namespace kernels

KeyValueCache key_value_cache(Context& context, const HeadLayout& layout, int64_t slots,
                              int64_t positions, DType dtype) {
  Shape shape{slots, layout.kv_heads, positions, layout.width};
  if (context.stream.device() == Device::kCpu) {
    dtype = wide_of(dtype);
    const int64_t panel = on_float(dtype, []<class T>() { return kTileColumns<Wide<T>>; });
    const auto whole = [&](int64_t size) { return (size + panel - 1) / panel * panel; };
    shape = {slots, layout.kv_heads, whole(positions), whole(layout.width)};
  }
  return {context.activation(shape, dtype), context.activation(shape, dtype)};
}

Variable attention_cached(Context& context, const Variable& qkv, const HeadLayout& layout,
                          KeyValueCache& cache, const Tensor& slots, int64_t window) {
  const Shape shape = qkv.shape();
  const int64_t rows = shape[0];
  require(!context.tape && shape.rank() == 2 && shape[1] == layout.row() &&
              slots.elements() == rows && context.positions.elements() == rows,
          [&] { return str("attention_cached: qkv ", shape, " in ", slots.shape(), " slots"); });
  const Shape& cached = cache.keys.shape();
  const kernels::CacheSizes sizes{layout, rows, cached[2], cached[3], window};
  const kernels::CachePlaces places{slots.data<int32_t>(), context.positions.data<int32_t>()};
  Tensor y = context.activation({rows, layout.heads * layout.width}, qkv.dtype());
  const Tensor workspace =
      context.workspace({kernels::attention_from_cache_workspace(context.stream.device(), sizes)},
                        wide_of(qkv.dtype()));
  const Work work = touching(qkv.value(), cache.keys, cache.values, y);
  on_device(context.stream, work, qkv.dtype(), [&]<class T>(auto device) {
    using Kept = std::conditional_t<std::is_same_v<decltype(device), Cpu>, Wide<T>, T>;
    Kept *keys = cache.keys.data<Kept>(), *values = cache.values.data<Kept>();
    kernels::cache_append(device, qkv.data<T>(), places, keys, values, sizes);
    kernels::attention_from_cache(device, qkv.data<T>(), places, keys, values, y.data<T>(), sizes,
                                  workspace.data<Wide<T>>());
  });
  return Variable(std::move(y));
}

}  // namespace tandem

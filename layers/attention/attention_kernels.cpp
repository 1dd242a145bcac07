// Attention on the CPU.
//
// The unit of work is a panel of queries, as many as a matrix product's tile has columns. Its
// scores are computed transposed, [keys, queries]. So the softmax works on whole vectors of
// queries, and its result can be the right operand of the next product without another
// transposition.
#include <omp.h>

#include <cmath>
#include <limits>

#include "layers/attention/attention.h"
#include "src/core/math.h"
#include "src/kernels/in_f32.h"
#include "src/kernels/map.h"
#include "src/product/gemm_tile.h"

namespace tandem::kernels {

namespace {

template <class T>
constexpr int64_t kPanel = kTileColumns<T>;  // queries of a panel

// The rows of one head in memory.
template <class T>
struct Rows {
  T* data;
  int64_t step;
  T* row(int64_t i) const { return data + i * step; }
};

// Rows from `first` on as an operand. by_width: for a product that sums over the head's width;
// by_rows: for one that sums over the rows.
template <class T>
Operand<T> by_width(Rows<const T> rows, int64_t first) {
  return {rows.row(first), rows.step, 1};
}
template <class T>
Operand<T> by_rows(Rows<const T> rows, int64_t first) {
  return {rows.row(first), 1, rows.step};
}

// Divides one thread's workspace into pieces.
template <class T>
struct Workspace {
  T* next;
  T* take(int64_t elements) {
    constexpr int64_t kAlign = 64 / static_cast<int64_t>(sizeof(T));
    T* piece = next;
    next += (elements + kAlign - 1) / kAlign * kAlign;
    return piece;
  }
};

// A panel of queries, and the keys that they see: from the first one of the first query's document
// to their own.
struct Panel {
  const int32_t* positions;  // of the sequence; null: it is one document
  int64_t first, count;      // queries
  template <class T>
  static Panel of(const AttentionSizes& sizes, const int32_t* positions, int64_t b, int64_t first) {
    return {positions ? positions + b * sizes.length : nullptr, first,
            std::min(kPanel<T>, sizes.length - first)};
  }
  int64_t start(int64_t query) const { return positions ? query - positions[query] : 0; }
  // The keys, from where packed ones can begin.
  Range keys() const { return {start(first) / kTileRows * kTileRows, first + count}; }
};

// Sets scores [keys, kPanel] of keys that a query does not see to minus infinity: those that come
// after it, and those of documents before its own.
template <class T>
void mask(T* scores, const Panel& panel) {
  constexpr T kUnseen = -std::numeric_limits<T>::infinity();
  const Range keys = panel.keys();
  const auto row = [&](int64_t key) { return scores + (key - keys.begin) * kPanel<T>; };
  for (int64_t q = 1; q < panel.count; ++q) {
    std::fill_n(row(panel.first + q), q, kUnseen);
  }
  for (int64_t q = 0; panel.positions && q < panel.count; ++q) {
    for (int64_t key = keys.begin; key < panel.start(panel.first + q); ++key) {
      row(key)[q] = kUnseen;
    }
  }
}

// Replaces scores [keys, kPanel] by exp(score - largest of its column); `total` is the sum of each
// column.
template <class T>
void exponentiate(T* scores, int64_t keys, T* largest, T* total) {
  Vector<T> top[kTileVectors], sum[kTileVectors] = {};
  for (int v = 0; v < kTileVectors; ++v) {
    top[v] = load(scores + v * kLanes<T>);
  }
  for (int64_t j = 1; j < keys; ++j) {
    for (int v = 0; v < kTileVectors; ++v) {
      const Vector<T> row = load(scores + j * kPanel<T> + v * kLanes<T>);
      top[v] = row > top[v] ? row : top[v];
    }
  }
  std::memcpy(largest, top, sizeof top);
  for (int64_t j = 0; j < keys; ++j) {
    T* row = scores + j * kPanel<T>;
#pragma omp simd
    for (int64_t q = 0; q < kPanel<T>; ++q) {
      row[q] = math::exp(row[q] - largest[q]);
    }
    for (int v = 0; v < kTileVectors; ++v) {
      sum[v] += load(row + v * kLanes<T>);
    }
  }
  std::memcpy(total, sum, sizeof sum);
}

// to[q, d] = beta * to[q, d] + factor[q] * from[d, q], for `count` queries.
template <class T>
void write_transposed(const T* from, const T* factor, Rows<T> to, T beta, int64_t count,
                      int64_t width) {
  constexpr int64_t kSide = kLanes<T>;
  const int64_t whole = width / kSide * kSide;
  for (int64_t q = 0; q < count; q += kSide) {
    const Vector<T> scale = load(factor + q);
    for (int64_t d = 0; d < whole; d += kSide) {
      Vector<T> square[kSide];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kSide; ++i) {
        square[i] = load(from + (d + i) * kPanel<T> + q) * scale;
      }
      transpose_square<T>(square);
      for (int64_t i = 0; i < std::min(kSide, count - q); ++i) {
        T* row = to.row(q + i) + d;
        store<T>(row, beta == T(0) ? square[i] : square[i] + beta * load(row));
      }
    }
  }
  for (int64_t q = 0; q < count; ++q) {
    for (int64_t d = whole; d < width; ++d) {
      T& value = to.row(q)[d];
      value = factor[q] * from[d * kPanel<T> + q] + (beta == T(0) ? T(0) : beta * value);
    }
  }
}

template <class T>
T scale_of(int64_t width) {
  return T(1) / std::sqrt(static_cast<T>(width));
}

// The packed keys and values that the queries of a head attend to. A panel's row is:
template <class T>
struct PackedKeys {
  Panels<T> k;         // a key
  Panels<T> v;         // a value in backward; one element of all values in forward
  Panels<T> k_across;  // one element of all keys (backward only)
};

// Forward for one panel of queries: y [count, width] and log_sum [count].
template <class T>
void attend_panel(const PackedKeys<T>& packed, Rows<const T> q, Rows<T> y, T* log_sum,
                  const Panel& panel, int64_t width, Workspace<T> memory) {
  const int64_t first = panel.first, count = panel.count;
  const int64_t from = panel.keys().begin, keys = panel.keys().count();
  const Panels<T> queries =
      pack<T, kPanel<T>>(by_width(q, first), count, width, memory.take(width * kPanel<T>));
  T* scores = memory.take(keys * kPanel<T>);
  T* out = memory.take(width * kPanel<T>);
  multiply_packed<T>(packed.k.from_row(from), queries, keys, kPanel<T>, width,
                     {scores, kPanel<T>, scale_of<T>(width), T(0)});
  mask(scores, panel);
  T largest[kPanel<T>], factor[kPanel<T>];
  exponentiate(scores, keys, largest, factor);
  for (int64_t i = 0; i < count; ++i) {
    log_sum[first + i] = largest[i] + std::log(factor[i]);
  }
  for (T& value : factor) {
    value = T(1) / value;
  }
  multiply_packed<T>(packed.v.from_depth(from), {scores, 0}, width, kPanel<T>, keys,
                     {out, kPanel<T>, T(1), T(0)});
  write_transposed(out, factor, {y.row(first), y.step}, T(0), count, width);
}

// Replaces scores by probabilities. Replaces dscores, which hold the gradients of the
// probabilities, by the gradients of the scores before scaling.
template <class T>
void differentiate_softmax(T* scores, T* dscores, int64_t keys, const T* log_sum, const T* delta,
                           T scale) {
  for (int64_t j = 0; j < keys; ++j) {
    T* p = scores + j * kPanel<T>;
    T* d = dscores + j * kPanel<T>;
#pragma omp simd
    for (int64_t q = 0; q < kPanel<T>; ++q) {
      p[q] = math::exp(p[q] - log_sum[q]);
      d[q] = p[q] * (d[q] - delta[q]) * scale;
    }
  }
}

template <class T>
T dot(const T* a, const T* b, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) {
    total += a[i] * b[i];
  }
  return total;
}

// A head's inputs and outputs of forward, and the places for its gradients.
template <class T>
struct HeadGradient {
  Rows<const T> q, y, dy;
  const T* log_sum;
  Rows<T> dq, dk, dv;
};

// Keys from `written` on have a part of their gradients already.
template <class T>
void differentiate_panel(const PackedKeys<T>& packed, const HeadGradient<T>& head,
                         const Panel& panel, int64_t written, int64_t width, T beta,
                         Workspace<T> memory) {
  const int64_t first = panel.first, count = panel.count, size = width * kPanel<T>;
  const int64_t from = panel.keys().begin, keys = panel.keys().count();
  const auto packed_by_width = [&](Rows<const T> rows) {
    return pack<T, kPanel<T>>(by_width(rows, first), count, width, memory.take(size));
  };
  const auto packed_by_rows = [&](Rows<const T> rows) {
    return pack<T, kPanel<T>>(by_rows(rows, first), width, count,
                              memory.take(panel_elements<T, kPanel<T>>(width, kPanel<T>)));
  };
  T* p = memory.take(keys * kPanel<T>);
  T* ds = memory.take(keys * kPanel<T>);
  T* dq = memory.take(size);
  const T scale = scale_of<T>(width);
  multiply_packed<T>(packed.k.from_row(from), packed_by_width(head.q), keys, kPanel<T>, width,
                     {p, kPanel<T>, scale, T(0)});
  multiply_packed<T>(packed.v.from_row(from), packed_by_width(head.dy), keys, kPanel<T>, width,
                     {ds, kPanel<T>, T(1), T(0)});
  mask(p, panel);
  T log_sum[kPanel<T>] = {}, delta[kPanel<T>] = {}, ones[kPanel<T>];
  for (int64_t i = 0; i < count; ++i) {
    log_sum[i] = head.log_sum[first + i];
    // sum over keys of probability * dprobability = <dy, y>
    delta[i] = dot(head.dy.row(first + i), head.y.row(first + i), width);
  }
  std::fill_n(ones, kPanel<T>, T(1));
  differentiate_softmax(p, ds, keys, log_sum, delta, scale);
  const auto add = [&](const T* weights, Panels<T> rows, Rows<T> to) {
    const int64_t fresh = std::clamp<int64_t>(written - from, 0, keys);
    multiply_rows<T>(weights, rows, fresh, width, count, {to.row(from), to.step, T(1), beta});
    multiply_rows<T>(weights + fresh * kPanel<T>, rows, keys - fresh, width, count,
                     {to.row(from + fresh), to.step, T(1), T(1)});
  };
  add(p, packed_by_rows(head.dy), head.dv);
  add(ds, packed_by_rows(head.q), head.dk);
  multiply_packed<T>(packed.k_across.from_depth(from), {ds, 0}, width, kPanel<T>, keys,
                     {dq, kPanel<T>, T(1), T(0)});
  write_transposed(dq, ones, {head.dq.row(first), head.dq.step}, beta, count, width);
}

// Workspace for one thread, enough for either pass.
template <class T>
int64_t thread_workspace(int64_t length, int64_t width) {
  const int64_t packed =
      2 * panel_elements<T, kTileRows>(length, width) + panel_elements<T, kTileRows>(width, length);
  const int64_t panel = 3 * width * kPanel<T> + 2 * length * kPanel<T> +
                        2 * panel_elements<T, kPanel<T>>(width, kPanel<T>);
  constexpr int64_t kPieces = 10, kAlign = 64 / static_cast<int64_t>(sizeof(T));
  return (packed + panel + kPieces * kAlign + kAlign - 1) / kAlign * kAlign;
}

// Calls f(batch index, key-value head, workspace) for all, in parallel if there is enough work.
template <class T, class F>
void for_each_group(const AttentionSizes& sizes, T* workspace, const F& f) {
  const int64_t share = thread_workspace<T>(sizes.length, sizes.width);
  const int64_t work = sizes.batch * sizes.heads * sizes.length * sizes.length * sizes.width;
#pragma omp parallel for collapse(2) schedule(static) if (work >= 8 * kParallelElements)
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t g = 0; g < sizes.kv_heads; ++g) {
      f(b, g, Workspace<T>{workspace + omp_get_thread_num() * share});
    }
  }
}

template <class T>
void attend(const AttentionSizes& sizes, const T* qkv, const int32_t* positions, T* y, T* log_sum,
            T* workspace) {
  const int64_t length = sizes.length, width = sizes.width;
  for_each_group(sizes, workspace, [&](int64_t b, int64_t g, Workspace<T> memory) {
    const int64_t k_head = sizes.heads + g;
    const Rows<const T> k{qkv + sizes.qkv_at(b, k_head), sizes.row()};
    const Rows<const T> v{qkv + sizes.qkv_at(b, k_head + sizes.kv_heads), sizes.row()};
    PackedKeys<T> packed{};
    packed.k = pack<T, kTileRows>(by_width(k, 0), length, width,
                                  memory.take(panel_elements<T, kTileRows>(length, width)));
    packed.v = pack<T, kTileRows>(by_rows(v, 0), width, length,
                                  memory.take(panel_elements<T, kTileRows>(width, length)));
    for (int64_t h = g * sizes.group(); h < (g + 1) * sizes.group(); ++h) {
      for (int64_t first = 0; first < length; first += kPanel<T>) {
        const Panel panel = Panel::of<T>(sizes, positions, b, first);
        attend_panel<T>(packed, {qkv + sizes.qkv_at(b, h), sizes.row()},
                        {y + sizes.y_at(b, h), sizes.heads * width},
                        log_sum + sizes.log_sum_at(b, h), panel, width, memory);
      }
    }
  });
}

template <class T>
void differentiate(const AttentionSizes& sizes, const T* dy, const T* qkv, const int32_t* positions,
                   const T* y, const T* log_sum, T* dqkv, T beta, T* workspace) {
  const int64_t length = sizes.length, width = sizes.width;
  const int64_t last_panel = (length - 1) / kPanel<T> * kPanel<T>;
  for_each_group(sizes, workspace, [&](int64_t b, int64_t g, Workspace<T> memory) {
    const int64_t row = sizes.row(), y_row = sizes.heads * width;
    const int64_t k_at = sizes.qkv_at(b, sizes.heads + g), v_at = k_at + sizes.kv_heads * width;
    const Rows<const T> k{qkv + k_at, row}, v{qkv + v_at, row};
    const auto keys_of = [&](Rows<const T> rows) {
      return pack<T, kTileRows>(by_width(rows, 0), length, width,
                                memory.take(panel_elements<T, kTileRows>(length, width)));
    };
    const PackedKeys<T> packed{
        keys_of(k), keys_of(v),
        pack<T, kTileRows>(by_rows(k, 0), width, length,
                           memory.take(panel_elements<T, kTileRows>(width, length)))};
    for (int64_t h = g * sizes.group(); h < (g + 1) * sizes.group(); ++h) {
      const int64_t out = sizes.y_at(b, h), q_at = sizes.qkv_at(b, h);
      const HeadGradient<T> head{{qkv + q_at, row},  {y + out, y_row},
                                 {dy + out, y_row},  log_sum + sizes.log_sum_at(b, h),
                                 {dqkv + q_at, row}, {dqkv + k_at, row},
                                 {dqkv + v_at, row}};
      // The last panel sees the last keys, so it comes first; of one document it sees all.
      int64_t written = h == g * sizes.group() ? length : 0;
      for (int64_t first = last_panel; first >= 0; first -= kPanel<T>) {
        const Panel panel = Panel::of<T>(sizes, positions, b, first);
        differentiate_panel<T>(packed, head, panel, written, width, beta, memory);
        written = std::min(written, panel.keys().begin);
      }
    }
  });
}

}  // namespace

int64_t attention_workspace(Device device, DType dtype, const AttentionSizes& sizes) {
  if (device == Device::kCuda) {
    return sizes.batch * sizes.heads * sizes.length;  // delta, in backward
  }
  return on_float(dtype, [&]<class T>() {
    return omp_get_max_threads() * thread_workspace<Wide<T>>(sizes.length, sizes.width);
  });
}

template <class T>
void attention_forward(Cpu, const T* qkv, const int32_t* positions, T* y, Wide<T>* log_sum,
                       const AttentionSizes& sizes, Wide<T>* workspace) {
  if constexpr (kIs16Bit<T>) {
    const int64_t rows = sizes.batch * sizes.length;
    in_f32([&](const float* qkv32,
               float* y32) { attend(sizes, qkv32, positions, y32, log_sum, workspace); },
           in(qkv, rows * sizes.row()), out(y, rows * sizes.heads * sizes.width));
  } else {
    attend(sizes, qkv, positions, y, log_sum, workspace);
  }
}

template <class T>
void attention_backward(Cpu, const T* dy, const T* qkv, const int32_t* positions, const T* y,
                        const Wide<T>* log_sum, T* dqkv, Wide<T> beta, const AttentionSizes& sizes,
                        Wide<T>* workspace, Wide<T>*) {
  if constexpr (kIs16Bit<T>) {
    const int64_t rows = sizes.batch * sizes.length;
    const int64_t n = rows * sizes.row(), y_n = rows * sizes.heads * sizes.width;
    in_f32(
        [&](const float* dy32, const float* qkv32, const float* y32, float* dqkv32) {
          differentiate(sizes, dy32, qkv32, positions, y32, log_sum, dqkv32, beta, workspace);
        },
        in(dy, y_n), in(qkv, n), in(y, y_n), inout(dqkv, n));
  } else {
    differentiate(sizes, dy, qkv, positions, y, log_sum, dqkv, beta, workspace);
  }
}

#define TANDEM_ATTENTION(T)                                                               \
  template void attention_forward<T>(Cpu, const T*, const int32_t*, T*, Wide<T>*,         \
                                     const AttentionSizes&, Wide<T>*);                    \
  template void attention_backward<T>(Cpu, const T*, const T*, const int32_t*, const T*,  \
                                      const Wide<T>*, T*, Wide<T>, const AttentionSizes&, \
                                      Wide<T>*, Wide<T>*);
TANDEM_FOR_CPU(TANDEM_ATTENTION)

}  // namespace tandem::kernels

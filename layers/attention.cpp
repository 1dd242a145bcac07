#include "layers/attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/core/gemm.h"
#include "src/core/math.h"

namespace tandem {

namespace kernels {

namespace {

constexpr int64_t kQueryTile = 64;  // query rows whose scores exist at a time
constexpr int64_t kPad = 16;        // rows of scores are padded to this many, for whole vectors

int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

// Rows of one head in memory.
template <class T>
struct Rows {
  T* data;
  int64_t step;
  T* row(int64_t i) const { return data + i * step; }
};

// a [m, k] * b [n, k]^T
template <class T>
void multiply_transposed(int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a, Rows<const T> b,
                         Rows<T> c) {
  gemm_serial<T>(Transpose::kNo, Transpose::kYes, m, n, k, alpha, a.data, a.step, b.data, b.step,
                 T(0), c.data, c.step);
}

// c = beta * c + a [m, k] * b [k, n]
template <class T>
void multiply(int64_t m, int64_t n, int64_t k, Rows<const T> a, Rows<const T> b, T beta,
              Rows<T> c) {
  gemm_serial<T>(Transpose::kNo, Transpose::kNo, m, n, k, T(1), a.data, a.step, b.data, b.step,
                 beta, c.data, c.step);
}

// c = beta * c + a [k, m]^T * b [k, n]
template <class T>
void transposed_multiply(int64_t m, int64_t n, int64_t k, Rows<const T> a, Rows<const T> b, T beta,
                         Rows<T> c) {
  gemm_serial<T>(Transpose::kYes, Transpose::kNo, m, n, k, T(1), a.data, a.step, b.data, b.step,
                 beta, c.data, c.step);
}

// Scores of one row become exp(score - largest) for the first n, zero up to `width`, which is
// padded. Returns the sum; log_sum is its logarithm with the largest put back.
template <class T>
T exponentiate_row(T* scores, int64_t n, int64_t width, T& log_sum) {
  std::fill(scores + n, scores + width, -std::numeric_limits<T>::infinity());
  const int64_t end = padded(n);
  T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < end; ++j) {
    largest = scores[j] > largest ? scores[j] : largest;
  }
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < end; ++j) {
    scores[j] = math::exp(scores[j] - largest);
    total += scores[j];
  }
  std::fill(scores + end, scores + width, T(0));
  log_sum = largest + std::log(total);
  return total;
}

// Attention of `count` queries, the first at position `first`, to keys [0, first + count).
// log_sum [count] may be null.
template <class T>
void attend_tile(Rows<const T> q, Rows<const T> k, Rows<const T> v, Rows<T> y, T* log_sum,
                 int64_t first, int64_t count, int64_t width, T* workspace) {
  const int64_t keys = first + count;
  const Rows<T> scores{workspace, padded(keys)};
  multiply_transposed<T>(count, keys, width, T(1) / std::sqrt(static_cast<T>(width)), q, k, scores);
  T totals[kQueryTile];
  for (int64_t i = 0; i < count; ++i) {
    T row_log_sum;
    totals[i] = exponentiate_row(scores.row(i), first + i + 1, scores.step, row_log_sum);
    if (log_sum) {
      log_sum[i] = row_log_sum;
    }
  }
  multiply<T>(count, width, keys, {scores.data, scores.step}, v, T(0), y);
  for (int64_t i = 0; i < count; ++i) {
    const T factor = T(1) / totals[i];
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) {
      y.row(i)[d] *= factor;
    }
  }
}

// Probabilities and gradients of scaled scores of one row, from scores and dprobabilities.
template <class T>
void differentiate_row(T* scores, T* dscores, T log_sum, T delta, T scale, int64_t n,
                       int64_t width) {
  std::fill(scores + n, scores + width, -std::numeric_limits<T>::infinity());
  const int64_t end = padded(n);
  std::fill(dscores + n, dscores + end, T(0));
#pragma omp simd
  for (int64_t j = 0; j < end; ++j) {
    const T probability = math::exp(scores[j] - log_sum);
    scores[j] = probability;
    dscores[j] = probability * (dscores[j] - delta) * scale;
  }
  std::fill(scores + end, scores + width, T(0));
  std::fill(dscores + end, dscores + width, T(0));
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

// One head's operands: what forward read and wrote, and where gradients go.
template <class T>
struct HeadGradient {
  Rows<const T> q, k, v, y, dy;
  const T* log_sum;
  Rows<T> dq, dk, dv;
};

template <class T>
void differentiate_tile(const HeadGradient<T>& head, int64_t first, int64_t count, int64_t width,
                        T q_beta, T kv_beta, T* workspace) {
  const int64_t keys = first + count;
  const Rows<T> scores{workspace, padded(keys)};
  const Rows<T> dscores{workspace + count * scores.step, scores.step};
  const Rows<const T> q{head.q.row(first), head.q.step}, dy{head.dy.row(first), head.dy.step};
  const T scale = T(1) / std::sqrt(static_cast<T>(width));
  multiply_transposed<T>(count, keys, width, scale, q, head.k, scores);
  multiply_transposed<T>(count, keys, width, T(1), dy, head.v, dscores);
  for (int64_t i = 0; i < count; ++i) {
    // sum over keys of probability * dprobability = <dy, y>
    const T delta = dot(dy.row(i), head.y.row(first + i), width);
    differentiate_row(scores.row(i), dscores.row(i), head.log_sum[first + i], delta, scale,
                      first + i + 1, scores.step);
  }
  const Rows<const T> p{scores.data, scores.step}, ds{dscores.data, dscores.step};
  transposed_multiply<T>(keys, width, count, p, dy, kv_beta, head.dv);
  transposed_multiply<T>(keys, width, count, ds, q, kv_beta, head.dk);
  multiply<T>(count, width, keys, ds, head.k, q_beta, {head.dq.row(first), head.dq.step});
}

int64_t thread_workspace(int64_t length) {
  return 2 * std::min(length, kQueryTile) * padded(length);
}

// A parallel region pays from about this many multiply-adds.
constexpr int64_t kParallelProducts = 1 << 17;

}  // namespace

int64_t attention_workspace(Cpu, int64_t length) {
  return omp_get_max_threads() * thread_workspace(length);
}

template <class T>
void attention_forward(Cpu, const T* qkv, T* y, T* log_sum, int64_t batch, int64_t length,
                       int64_t heads, int64_t kv_heads, int64_t width, T* workspace) {
  const int64_t row = (heads + 2 * kv_heads) * width, group = heads / kv_heads;
#pragma omp parallel for collapse(2) \
    schedule(static) if (batch * heads * length * length * width >= kParallelProducts)
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const T* head = qkv + b * length * row;
      const Rows<const T> k{head + (heads + h / group) * width, row};
      const Rows<const T> v{k.data + kv_heads * width, row};
      for (int64_t first = 0; first < length; first += kQueryTile) {
        const int64_t count = std::min(kQueryTile, length - first);
        attend_tile<T>({head + first * row + h * width, row}, k, v,
                       {y + ((b * length + first) * heads + h) * width, heads * width},
                       log_sum + (b * heads + h) * length + first, first, count, width,
                       workspace + omp_get_thread_num() * thread_workspace(length));
      }
    }
  }
}

template <class T>
void attention_backward(Cpu, const T* dy, const T* qkv, const T* y, const T* log_sum, T* dqkv,
                        T beta, int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                        int64_t width, T* workspace) {
  const int64_t row = (heads + 2 * kv_heads) * width, group = heads / kv_heads;
  const int64_t last_tile = (length - 1) / kQueryTile * kQueryTile;
#pragma omp parallel for collapse(2) \
    schedule(static) if (batch * heads * length * length * width >= kParallelProducts)
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t g = 0; g < kv_heads; ++g) {
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        const int64_t at = b * length * row, k = (heads + g) * width, v = k + kv_heads * width;
        const int64_t out = b * length * heads * width + h * width;
        const HeadGradient<T> head{{qkv + at + h * width, row},  {qkv + at + k, row},
                                   {qkv + at + v, row},          {y + out, heads * width},
                                   {dy + out, heads * width},    log_sum + (b * heads + h) * length,
                                   {dqkv + at + h * width, row}, {dqkv + at + k, row},
                                   {dqkv + at + v, row}};
        // The last tile sees every key: it comes first, and later ones add.
        for (int64_t first = last_tile; first >= 0; first -= kQueryTile) {
          const bool adds = first != last_tile || h != g * group;
          differentiate_tile(head, first, std::min(kQueryTile, length - first), width, beta,
                             adds ? T(1) : beta,
                             workspace + omp_get_thread_num() * thread_workspace(length));
        }
      }
    }
  }
}

template <class T>
void attention_cached(Cpu, const T* qkv, T* keys, T* values, T* y, int64_t first, int64_t length,
                      int64_t capacity, int64_t heads, int64_t kv_heads, int64_t width,
                      T* workspace) {
  const int64_t row = (heads + 2 * kv_heads) * width, group = heads / kv_heads;
  for (int64_t g = 0; g < kv_heads; ++g) {
    for (int64_t t = 0; t < length; ++t) {
      const T* key = qkv + t * row + (heads + g) * width;
      const int64_t to = (g * capacity + first + t) * width;
      std::copy_n(key, width, keys + to);
      std::copy_n(key + kv_heads * width, width, values + to);
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t cached = h / group * capacity * width;
    for (int64_t t = 0; t < length; t += kQueryTile) {
      attend_tile<T>({qkv + t * row + h * width, row}, {keys + cached, width},
                     {values + cached, width}, {y + (t * heads + h) * width, heads * width},
                     nullptr, first + t, std::min(kQueryTile, length - t), width, workspace);
    }
  }
}

template void attention_forward<float>(Cpu, const float*, float*, float*, int64_t, int64_t, int64_t,
                                       int64_t, int64_t, float*);
template void attention_forward<double>(Cpu, const double*, double*, double*, int64_t, int64_t,
                                        int64_t, int64_t, int64_t, double*);
template void attention_backward<float>(Cpu, const float*, const float*, const float*, const float*,
                                        float*, float, int64_t, int64_t, int64_t, int64_t, int64_t,
                                        float*);
template void attention_backward<double>(Cpu, const double*, const double*, const double*,
                                         const double*, double*, double, int64_t, int64_t, int64_t,
                                         int64_t, int64_t, double*);
template void attention_cached<float>(Cpu, const float*, float*, float*, float*, int64_t, int64_t,
                                      int64_t, int64_t, int64_t, int64_t, float*);
template void attention_cached<double>(Cpu, const double*, double*, double*, double*, int64_t,
                                       int64_t, int64_t, int64_t, int64_t, int64_t, double*);

}  // namespace kernels

namespace {

struct AttentionOp final : Op {
  HeadLayout layout;
  Tensor qkv;      // [B, T, row]
  Tensor y;        // [B, T, heads * width]
  Tensor log_sum;  // [B, heads, T]

  std::string_view name() const override { return "attention"; }
  void backward(Context& context, Tensor& dy) override {
    const int64_t batch = qkv.shape()[0], length = qkv.shape()[1];
    const GradTarget dqkv = input(0).target(context);
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      const Tensor workspace =
          context.workspace({kernels::attention_workspace(device, length)}, dy.dtype());
      kernels::attention_backward(device, dy.data<T>(), qkv.data<T>(), y.data<T>(),
                                  log_sum.data<T>(), dqkv.into.data<T>(), T(dqkv.beta), batch,
                                  length, layout.heads, layout.kv_heads, layout.width,
                                  workspace.data<T>());
    });
  }
};

void require_layout(const Variable& qkv, const HeadLayout& layout) {
  require(qkv.shape().rank() == 3 && qkv.shape()[2] == layout.row() &&
              layout.heads % layout.kv_heads == 0,
          [&] {
            return str("attention: qkv ", qkv.shape(), " with ", layout.heads, " heads, ",
                       layout.kv_heads, " key-value heads of width ", layout.width);
          });
}

}  // namespace

Variable attention(Context& context, const Variable& qkv, const HeadLayout& layout) {
  require_layout(qkv, layout);
  const int64_t batch = qkv.shape()[0], length = qkv.shape()[1];
  auto op = std::make_unique<AttentionOp>();
  op->layout = layout;
  op->qkv = qkv.value();
  op->y = context.activation({batch, length, layout.heads * layout.width}, qkv.dtype());
  op->log_sum = context.activation({batch, layout.heads, length}, qkv.dtype());
  on_device_and_float(context.stream, qkv.dtype(), [&]<class T>(auto device) {
    const Tensor workspace =
        context.workspace({kernels::attention_workspace(device, length)}, qkv.dtype());
    kernels::attention_forward(device, qkv.data<T>(), op->y.data<T>(), op->log_sum.data<T>(), batch,
                               length, layout.heads, layout.kv_heads, layout.width,
                               workspace.data<T>());
  });
  Tensor y = op->y;
  return context.record(std::move(y), std::move(op), {qkv});
}

Variable attention_cached(Context& context, const Variable& qkv, const HeadLayout& layout,
                          KeyValueCache& cache) {
  require_layout(qkv, layout);
  const int64_t length = qkv.shape()[1], capacity = cache.keys.shape()[1];
  require(qkv.shape()[0] == 1 && cache.length + length <= capacity, [&] {
    return str("attention_cached: qkv ", qkv.shape(), " on top of ", cache.length, " of ", capacity,
               " positions");
  });
  Tensor y = context.activation({1, length, layout.heads * layout.width}, qkv.dtype());
  on_device_and_float(context.stream, qkv.dtype(), [&]<class T>(auto device) {
    const Tensor workspace = context.workspace(
        {kernels::attention_workspace(device, cache.length + length)}, qkv.dtype());
    kernels::attention_cached(device, qkv.data<T>(), cache.keys.data<T>(), cache.values.data<T>(),
                              y.data<T>(), cache.length, length, capacity, layout.heads,
                              layout.kv_heads, layout.width, workspace.data<T>());
  });
  cache.length += length;
  return Variable(std::move(y));
}

}  // namespace tandem

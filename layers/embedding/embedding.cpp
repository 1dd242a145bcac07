#include "layers/embedding/embedding.h"

#include <algorithm>

#include "layers/embedding/token_order.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

namespace {

constexpr int64_t kStrip = 32;  // columns that a thread sums at a time: two cache lines of f32

// to = beta * to. If beta is 0, `to` is not read.
template <class W>
void scale(Cpu device, int64_t n, W* to, W beta) {
  if (beta != 1) {
    map(device, n, [=](int64_t i) { to[i] = beta == W(0) ? W(0) : beta * to[i]; });
  }
}

}  // namespace

template <class T>
void embedding_forward(Cpu, const int32_t* tokens, const T* weight, const int32_t* positions,
                       const T* of_positions, T* y, const EmbeddingSizes& sizes) {
  const int64_t length = sizes.length, width = sizes.width;
  for (int64_t n = 0; n < sizes.count(); ++n) {
    if (tokens[n] < 0 || tokens[n] >= sizes.vocab) {
      fail_data("token ", tokens[n], " at position ", n % length, " of sample ", n / length,
                " is outside the vocabulary of ", sizes.vocab);
    }
  }
#pragma omp parallel for schedule(static) if (sizes.count() * width >= kParallelElements)
  for (int64_t n = 0; n < sizes.count(); ++n) {
    const bool is_here = sizes.tokens.has(tokens[n]),
               is_placed = of_positions && sizes.placed.has(n);
    const T* token = weight + (tokens[n] - sizes.tokens.begin) * width;
    const T* position = of_positions + (positions ? positions[n] : n % length) * width;
    T* to = y + n * width;
    if (!is_here || !is_placed) {
      is_here     ? std::copy_n(token, width, to)
      : is_placed ? std::copy_n(position, width, to)
                  : std::fill_n(to, width, T(0));
      continue;
    }
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      to[j] = T(Wide<T>(token[j]) + Wide<T>(position[j]));
    }
  }
}

int64_t embedding_workspace(Device device, int64_t count, int64_t vocab) {
  return device == Device::kCpu ? 0 : token_order_workspace(count, vocab);
}

template <class T>
void embedding_backward_tokens(Cpu device, const int32_t* tokens, const T* dy, Wide<T>* dweight,
                               Wide<T> beta, const EmbeddingSizes& sizes, int32_t*) {
  const int64_t count = sizes.count(), width = sizes.width;
  scale(device, sizes.rows() * width, dweight, beta);
  // Threads divide the columns, not the tokens: two equal tokens add to the same row.
#pragma omp parallel for schedule(static) if (count * width >= kParallelElements)
  for (int64_t first = 0; first < width; first += kStrip) {
    const int64_t columns = std::min(kStrip, width - first);
    for (int64_t n = 0; n < count; ++n) {
      if (!sizes.tokens.has(tokens[n])) {
        continue;
      }
      const T* from = dy + n * width + first;
      Wide<T>* to = dweight + (tokens[n] - sizes.tokens.begin) * width + first;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        to[j] += from[j];
      }
    }
  }
}

template <class T>
void embedding_backward_positions(Cpu device, const T* dy, Wide<T>* dweight, Wide<T> beta,
                                  int64_t context, const EmbeddingSizes& sizes) {
  const int64_t length = sizes.length, width = sizes.width;
  scale(device, context * width, dweight, beta);
#pragma omp parallel for schedule(static) if (sizes.count() * width >= kParallelElements)
  for (int64_t t = 0; t < length; ++t) {
    Wide<T>* to = dweight + t * width;
    for (int64_t n = t; n < sizes.count(); n += length) {
      if (!sizes.placed.has(n)) {
        continue;
      }
      const T* from = dy + n * width;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        to[j] += from[j];
      }
    }
  }
}

}  // namespace kernels

namespace {

struct EmbeddingOp final : Op {
  Tensor tokens, positions;  // i32 [B, T]
  kernels::EmbeddingSizes sizes;

  std::string_view name() const override { return "embedding"; }
  void backward(Context& context, Tensor& dy) override {
    const int64_t count = sizes.count();
    const int64_t entries = std::max(sizes.vocab, positions ? parameter(1).shape[0] : 0);
    const Tensor workspace = context.workspace(
        {kernels::embedding_workspace(context.stream.device(), count, entries)}, DType::kI32);
    const GradTarget dpositions = parameter_target(1), dweight = parameter_target(0);
    Work work = touching(tokens, dpositions.into ? dy : Tensor(), dpositions, dy);
    // All rows are written, or those of tokens are added to.
    const int64_t rows = dweight.beta == 0 ? sizes.rows() : std::min(count, sizes.rows());
    const int64_t row_bytes = dweight.bytes() / sizes.rows();
    work.bytes += static_cast<double>(row_bytes * rows);
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      if (dpositions.into) {
        differentiate_positions(device, dy.data<T>(), dpositions.into.data<W>(), W(dpositions.beta),
                                workspace.data<int32_t>());
      }
      if (dweight.into) {
        kernels::embedding_backward_tokens(device, tokens.data<int32_t>(), dy.data<T>(),
                                           dweight.into.data<W>(), W(dweight.beta), sizes,
                                           workspace.data<int32_t>());
      }
    });
  }

  template <class D, class T>
  void differentiate_positions(D device, const T* dy, Wide<T>* into, Wide<T> beta,
                               int32_t* workspace) {
    const int64_t context = parameter(1).shape[0];
    if (!positions) {
      return kernels::embedding_backward_positions(device, dy, into, beta, context, sizes);
    }
    const Range placed = intersection(sizes.placed, {0, sizes.count()});
    kernels::embedding_backward_tokens(device, positions.data<int32_t>() + placed.begin,
                                       dy + placed.begin * sizes.width, into, beta,
                                       {1, placed.count(), sizes.width, context}, workspace);
  }
};

}  // namespace

Variable embedding(Context& context, const Tensor& tokens, Parameter& tokens_weight,
                   Parameter* positions_weight) {
  require(tokens.shape().rank() == 2, "embedding: tokens ", tokens.shape(),
          ", want [batch, length]");
  const int64_t batch = tokens.shape()[0], length = tokens.shape()[1];
  const Slice rows = pieces_of(tokens_weight)[0].slice;
  const int64_t width = tokens_weight.shape[1], first = rows.start()[0];
  kernels::EmbeddingSizes sizes{batch, length, width, rows.whole()[0]};
  sizes.tokens = {first, first + rows.extent()[0]};
  if (context.rows.length > 0) {
    sizes.placed = context.rows.here;
  }
  require(!positions_weight || length <= positions_weight->shape[0], [&] {
    return str("embedding: positions up to ", length, " of a context of ",
               positions_weight->shape[0]);
  });
  Tensor y = context.activation({batch, length, width}, tokens_weight.value.dtype());
  // Rows of the tables are read again for each token.
  const Work work = touching(tokens, y, y, positions_weight ? y : Tensor());
  on_device(context.stream, work, y.dtype(), [&]<class T>(auto device) {
    const T* of_positions = positions_weight ? positions_weight->value.data<T>() : nullptr;
    const int32_t* positions = context.positions ? context.positions.data<int32_t>() : nullptr;
    kernels::embedding_forward(device, tokens.data<int32_t>(), tokens_weight.value.data<T>(),
                               positions, of_positions, y.data<T>(), sizes);
  });
  auto op = std::make_unique<EmbeddingOp>();
  op->tokens = tokens;
  op->positions = positions_weight ? context.positions : Tensor();
  op->sizes = sizes;
  return context.record(std::move(y), std::move(op), {}, {&tokens_weight, positions_weight});
}

}  // namespace tandem

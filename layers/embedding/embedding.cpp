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
void embedding_forward(Cpu, const int32_t* tokens, const T* weight, const T* positions, T* y,
                       int64_t batch, int64_t length, int64_t vocab, int64_t width) {
  for (int64_t n = 0; n < batch * length; ++n) {
    if (tokens[n] < 0 || tokens[n] >= vocab) {
      fail(ExitCode::kData, str("token ", tokens[n], " at position ", n % length, " of sample ",
                                n / length, " is outside the vocabulary of ", vocab));
    }
  }
#pragma omp parallel for schedule(static) if (batch * length * width >= kParallelElements)
  for (int64_t n = 0; n < batch * length; ++n) {
    const T* token = weight + tokens[n] * width;
    T* to = y + n * width;
    if (!positions) {
      std::copy_n(token, width, to);
      continue;
    }
    const T* position = positions + n % length * width;
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
                               Wide<T> beta, int64_t count, int64_t vocab, int64_t width,
                               int32_t*) {
  scale(device, vocab * width, dweight, beta);
  // Threads divide the columns, not the tokens: two equal tokens add to the same row.
#pragma omp parallel for schedule(static) if (count * width >= kParallelElements)
  for (int64_t first = 0; first < width; first += kStrip) {
    const int64_t columns = std::min(kStrip, width - first);
    for (int64_t n = 0; n < count; ++n) {
      const T* from = dy + n * width + first;
      Wide<T>* to = dweight + tokens[n] * width + first;
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) {
        to[j] += from[j];
      }
    }
  }
}

template <class T>
void embedding_backward_positions(Cpu device, const T* dy, Wide<T>* dweight, Wide<T> beta,
                                  int64_t first, int64_t batch, int64_t length, int64_t context,
                                  int64_t width) {
  scale(device, context * width, dweight, beta);
#pragma omp parallel for schedule(static) if (batch * length * width >= kParallelElements)
  for (int64_t t = 0; t < length; ++t) {
    Wide<T>* to = dweight + (first + t) * width;
    for (int64_t b = 0; b < batch; ++b) {
      const T* from = dy + (b * length + t) * width;
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
  Tensor tokens;  // i32 [B, T]
  int64_t first_position = 0;

  std::string_view name() const override { return "embedding"; }
  void backward(Context& context, Tensor& dy) override {
    const Parameter& weight = parameter(0);
    const int64_t vocab = weight.shape[0], width = weight.shape[1], count = tokens.elements();
    const Tensor workspace = context.workspace(
        {kernels::embedding_workspace(context.stream.device(), count, vocab)}, DType::kI32);
    const GradTarget dpositions = parameter_target(1), dweight = parameter_target(0);
    Work work = touching(tokens, dpositions.into ? dy : Tensor(), dpositions, dy);
    // All rows are written, or those of tokens are added to.
    const int64_t rows = dweight.beta == 0 ? vocab : std::min(count, vocab);
    work.bytes += static_cast<double>(dweight.bytes() / vocab * rows);
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      if (dpositions.into) {
        kernels::embedding_backward_positions(device, dy.data<T>(), dpositions.into.data<W>(),
                                              W(dpositions.beta), first_position, tokens.shape()[0],
                                              tokens.shape()[1], parameter(1).shape[0], width);
      }
      if (dweight.into) {
        kernels::embedding_backward_tokens(device, tokens.data<int32_t>(), dy.data<T>(),
                                           dweight.into.data<W>(), W(dweight.beta), count, vocab,
                                           width, workspace.data<int32_t>());
      }
    });
  }
};

}  // namespace

Variable embedding(Context& context, const Tensor& tokens, Parameter& tokens_weight,
                   Parameter* positions_weight, int64_t first_position) {
  require(tokens.shape().rank() == 2,
          [&] { return str("embedding: tokens ", tokens.shape(), ", want [batch, length]"); });
  const int64_t batch = tokens.shape()[0], length = tokens.shape()[1];
  const int64_t vocab = tokens_weight.shape[0], width = tokens_weight.shape[1];
  require(!positions_weight || first_position + length <= positions_weight->shape[0], [&] {
    return str("embedding: positions up to ", first_position + length, " of a context of ",
               positions_weight->shape[0]);
  });
  Tensor y = context.activation({batch, length, width}, tokens_weight.value.dtype());
  // Rows of the tables are read again for each token.
  const Work work = touching(tokens, y, y, positions_weight ? y : Tensor());
  on_device(context.stream, work, y.dtype(), [&]<class T>(auto device) {
    const T* positions =
        positions_weight ? positions_weight->value.data<T>() + first_position * width : nullptr;
    kernels::embedding_forward(device, tokens.data<int32_t>(), tokens_weight.value.data<T>(),
                               positions, y.data<T>(), batch, length, vocab, width);
  });
  auto op = std::make_unique<EmbeddingOp>();
  op->tokens = tokens;
  op->first_position = first_position;
  return context.record(std::move(y), std::move(op), {}, {&tokens_weight, positions_weight});
}

}  // namespace tandem

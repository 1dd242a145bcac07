#include "layers/rope/norm_rope.h"

#include <algorithm>
#include <cmath>

#include "layers/rope/rope_rows.h"
#include "src/kernels/column_sums.h"
#include "src/kernels/in_f32.h"

namespace tandem {

namespace kernels {

namespace {

template <class W>
void forward_head(const W* x, const W* gain, const W* cosine, const W* sine, W* y, W& rstd,
                  W epsilon, int64_t width) {
  W squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; ++i) {
    squares += x[i] * x[i];
  }
  rstd = 1 / std::sqrt(squares / static_cast<W>(width) + epsilon);
  const int64_t half = width / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const W first = x[i] * rstd * gain[i], second = x[i + half] * rstd * gain[i + half];
    y[i] = first * cosine[i] - second * sine[i];
    y[i + half] = second * cosine[i] + first * sine[i];
  }
}

// With n = x rstd and g the gradient of gain n: dx = rstd (gain g - n <gain g, n> / width). The
// angles are those of the inverse rotation. Adds n g to dgain.
template <class W>
void backward_head(const W* dy, const W* x, const W* gain, const W* cosine, const W* sine, W rstd,
                   W* dx, W beta, W* dgain, int64_t width) {
  const int64_t half = width / 2;
  W dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < half; ++i) {
    const W first = (dy[i] * cosine[i] - dy[i + half] * sine[i]) * x[i] * rstd;
    const W second = (dy[i + half] * cosine[i] + dy[i] * sine[i]) * x[i + half] * rstd;
    dgain[i] += first;
    dgain[i + half] += second;
    dot += first * gain[i] + second * gain[i + half];
  }
  const W mean = dot / static_cast<W>(width);
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const W first = (dy[i] * cosine[i] - dy[i + half] * sine[i]) * gain[i];
    const W second = (dy[i + half] * cosine[i] + dy[i] * sine[i]) * gain[i + half];
    const W of_first = rstd * (first - x[i] * rstd * mean);
    const W of_second = rstd * (second - x[i + half] * rstd * mean);
    dx[i] = beta == 0 ? of_first : beta * dx[i] + of_first;
    dx[i + half] = beta == 0 ? of_second : beta * dx[i + half] + of_second;
  }
}

}  // namespace

template <class T>
void norm_rope_forward(Cpu device, const Rotation& of, const T* x, const T* gains, T* y,
                       Wide<T>* rstd, Wide<T> epsilon) {
  const int64_t row = of.row(), width = of.width, heads = of.turned_heads();
  if constexpr (kIs16Bit<T>) {
    const int64_t n = of.batch * of.length * row;
    in_f32([&](const float* x32, const float* gains32,
               float* y32) { norm_rope_forward(device, of, x32, gains32, y32, rstd, epsilon); },
           in(x, n), in(gains, 2 * width), out(y, n));
  } else {
    rope_rows::for_rows<T>(of, 1, [&](int64_t n, const T* cosine, const T* sine) {
      const T* from = x + n * row;
      T* to = y + n * row;
      for (int64_t h = 0; h < heads; ++h) {
        forward_head(from + h * width, gains + (h < of.heads ? 0 : width), cosine, sine,
                     to + h * width, rstd[n * heads + h], epsilon, width);
      }
      std::copy(from + heads * width, from + row, to + heads * width);
    });
  }
}

template <class T>
void norm_rope_backward(Cpu device, const Rotation& of, const T* dy, const T* x, const T* gains,
                        const Wide<T>* rstd, T* dx, Wide<T> beta, Wide<T>* dgains) {
  const int64_t row = of.row(), width = of.width, heads = of.turned_heads();
  if constexpr (kIs16Bit<T>) {
    const int64_t n = of.batch * of.length * row;
    in_f32(
        [&](const float* dy32, const float* x32, const float* gains32, float* dx32) {
          norm_rope_backward(device, of, dy32, x32, gains32, rstd, dx32, beta, dgains);
        },
        in(dy, n), in(x, n), in(gains, 2 * width), inout(dx, n));
  } else {
    rope_rows::for_rows<T>(of, -1, [&](int64_t n, const T* cosine, const T* sine) {
      const T *from = dy + n * row, *value = x + n * row;
      T *to = dx + n * row, *dgain = dgains + n * 2 * width;
      std::fill_n(dgain, 2 * width, T(0));
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t of_keys = h < of.heads ? 0 : width, at = h * width;
        backward_head(from + at, value + at, gains + of_keys, cosine, sine, rstd[n * heads + h],
                      to + at, beta, dgain + of_keys, width);
      }
      for (int64_t i = heads * width; i < row; ++i) {
        to[i] = beta == 0 ? from[i] : beta * to[i] + from[i];
      }
    });
  }
}

}  // namespace kernels

namespace {

struct NormRopeOp final : Op {
  kernels::Rotation rotation;
  Tensor positions;  // those of the rotation
  Tensor qkv, rstd;

  std::string_view name() const override { return "norm_rope"; }
  void backward(Context& context, Tensor& dy) override {
    const GradTarget dx = input(0).target(context);
    const int64_t rows = rotation.batch * rotation.length, columns = 2 * rotation.width;
    const Device device = context.stream.device();
    const Tensor of_rows = context.workspace({rows, columns}, wide_of(dy.dtype()));
    Tensor dgains = context.workspace({kernels::row_chunks(device, rows, columns), columns},
                                      wide_of(dy.dtype()));
    const Work work = touching(dy, qkv, rstd, dx, of_rows);
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto where) {
      kernels::norm_rope_backward(where, rotation, dy.data<T>(), qkv.data<T>(),
                                  parameter(0).value.data<T>(), rstd.data<Wide<T>>(),
                                  dx.into.data<T>(), Wide<T>(dx.beta), of_rows.data<Wide<T>>());
    });
    on_device(context.stream, touching(of_rows, dgains), of_rows.dtype(), [&]<class W>(auto where) {
      if constexpr (!kIs16Bit<W>) {
        kernels::sum_rows(where, of_rows.data<W>(), dgains.data<W>(), rows, columns);
      }
    });
    add_rows(0, std::move(dgains));
  }
};

}  // namespace

Variable norm_rope(Context& context, const Variable& qkv, Parameter& gains, double epsilon,
                   const HeadLayout& layout, const RopeFrequencies& frequencies) {
  require(qkv.shape().rank() == 3 && qkv.shape()[2] == layout.row() && layout.width % 2 == 0 &&
              gains.shape == Shape{2 * layout.width},
          "norm_rope: qkv ", qkv.shape(), " with heads of width ", layout.width, " and gains ",
          gains.shape);
  const int64_t batch = qkv.shape()[0], length = qkv.shape()[1];
  auto op = std::make_unique<NormRopeOp>();
  op->positions = context.positions;
  op->rotation = {{layout, batch, length},
                  frequencies,
                  op->positions ? op->positions.data<int32_t>() : nullptr};
  op->qkv = qkv.value();
  op->rstd = context.activation({batch, length, op->rotation.turned_heads()}, wide_of(qkv.dtype()));
  Tensor y = context.activation(qkv.shape(), qkv.dtype());
  on_device(context.stream, touching(qkv.value(), y, op->rstd), qkv.dtype(),
            [&]<class T>(auto device) {
              kernels::norm_rope_forward(device, op->rotation, qkv.data<T>(), gains.value.data<T>(),
                                         y.data<T>(), op->rstd.data<Wide<T>>(), Wide<T>(epsilon));
            });
  return context.record(std::move(y), std::move(op), {qkv}, {&gains});
}

}  // namespace tandem

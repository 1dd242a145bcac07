#include "layers/pool2d/pool2d.h"

#include <algorithm>
#include <limits>

#include "src/kernels/in_f32.h"

namespace tandem {

namespace kernels {

template <class T>
void max_pool2d_forward(Cpu, const Pool2dShape& s, const T* x, T* y, int32_t* winner) {
  const int64_t out_height = s.out_height(), out_width = s.out_width(), channels = s.channels;
#pragma omp parallel for schedule(static) if (s.batch * s.height * s.width * channels >= \
                                              kParallelElements)
  for (int64_t row = 0; row < s.batch * out_height; ++row) {
    const T* image = x + row / out_height * s.height * s.width * channels;
    const int64_t top = row % out_height * s.stride - s.padding;
    for (int64_t ow = 0; ow < out_width; ++ow) {
      const int64_t left = ow * s.stride - s.padding;
      T* best = y + (row * out_width + ow) * channels;
      int32_t* place = winner + (row * out_width + ow) * channels;
      bool first = true;
      for (int64_t ih = std::max(top, int64_t{0}); ih < std::min(top + s.kernel, s.height); ++ih) {
        for (int64_t iw = std::max(left, int64_t{0}); iw < std::min(left + s.kernel, s.width);
             ++iw, first = false) {
          const T* value = image + (ih * s.width + iw) * channels;
          const auto index = static_cast<int32_t>(ih * s.width + iw);
#pragma omp simd
          for (int64_t c = 0; c < channels; ++c) {
            // A NaN wins only against a number, so the first NaN keeps its place.
            const bool wins =
                first || value[c] > best[c] || (value[c] != value[c] && best[c] == best[c]);
            best[c] = wins ? value[c] : best[c];
            place[c] = wins ? index : place[c];
          }
        }
      }
    }
  }
}

template <class T>
void max_pool2d_backward(Cpu device, const Pool2dShape& s, const T* dy, const int32_t* winner,
                         T* dx, Wide<T> beta) {
  if constexpr (kIs16Bit<T>) {
    in_f32([&](const float* dy32,
               float* dx32) { max_pool2d_backward(device, s, dy32, winner, dx32, beta); },
           in(dy, s.batch * s.out_height() * s.out_width() * s.channels),
           inout(dx, s.batch * s.height * s.width * s.channels));
  } else {
    const int64_t in_size = s.height * s.width * s.channels;
    const int64_t out_pixels = s.out_height() * s.out_width();
#pragma omp parallel for schedule(static) if (s.batch * in_size >= kParallelElements)
    for (int64_t n = 0; n < s.batch; ++n) {
      T* image = dx + n * in_size;
      if (beta == T(0)) {
        std::fill_n(image, in_size, T(0));
      }
      for (int64_t pixel = n * out_pixels; pixel < (n + 1) * out_pixels; ++pixel) {
        for (int64_t c = 0; c < s.channels; ++c) {
          const int64_t at = pixel * s.channels + c;
          image[winner[at] * s.channels + c] += dy[at];
        }
      }
    }
  }
}

template <class T>
void average_pixels_forward(Cpu device, const T* x, T* y, int64_t batch, int64_t pixels,
                            int64_t channels) {
  if constexpr (kIs16Bit<T>) {
    in_f32([&](const float* x32,
               float* y32) { average_pixels_forward(device, x32, y32, batch, pixels, channels); },
           in(x, batch * pixels * channels), out(y, batch * channels));
  } else {
#pragma omp parallel for schedule(static) if (batch * pixels * channels >= kParallelElements)
    for (int64_t n = 0; n < batch; ++n) {
      T* sum = y + n * channels;
      std::fill_n(sum, channels, T(0));
      for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        const T* value = x + (n * pixels + pixel) * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
          sum[c] += value[c];
        }
      }
      for (int64_t c = 0; c < channels; ++c) {
        sum[c] /= static_cast<T>(pixels);
      }
    }
  }
}

template <class T>
void average_pixels_backward(Cpu, const T* dy, T* dx, Wide<T> beta, int64_t batch, int64_t pixels,
                             int64_t channels) {
#pragma omp parallel for schedule(static) if (batch * pixels * channels >= kParallelElements)
  for (int64_t row = 0; row < batch * pixels; ++row) {
    const T* gradient = dy + row / pixels * channels;
    T* to = dx + row * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; ++c) {
      const Wide<T> share = Wide<T>(gradient[c]) / static_cast<Wide<T>>(pixels);
      to[c] = T(share + (beta == 0 ? 0 : beta * Wide<T>(to[c])));
    }
  }
}

// Tests call it from other files.
template void max_pool2d_forward<float>(Cpu, const Pool2dShape&, const float*, float*, int32_t*);

}  // namespace kernels

namespace {

struct MaxPoolOp final : Op {
  Tensor winner;  // i32, of the result's shape: the pixel that was largest
  Pool2dShape shape;

  std::string_view name() const override { return "max_pool2d"; }
  void backward(Context& context, Tensor& dy) override {
    const GradTarget dx = input(0).target(context);
    on_device(context.stream, touching(dy, winner, dx), dy.dtype(), [&]<class T>(auto device) {
      kernels::max_pool2d_backward(device, shape, dy.data<T>(), winner.data<int32_t>(),
                                   dx.into.data<T>(), Wide<T>(dx.beta));
    });
  }
};

struct AveragePoolOp final : Op {
  int64_t pixels = 0;

  std::string_view name() const override { return "global_average_pool"; }
  void backward(Context& context, Tensor& dy) override {
    const GradTarget dx = input(0).target(context);
    on_device(context.stream, touching(dy, dx), dy.dtype(), [&]<class T>(auto device) {
      kernels::average_pixels_backward(device, dy.data<T>(), dx.into.data<T>(), Wide<T>(dx.beta),
                                       dy.shape()[0], pixels, dy.shape()[1]);
    });
  }
};

}  // namespace

Variable max_pool2d(Context& context, const Variable& x, int64_t kernel, int64_t stride,
                    int64_t padding) {
  require(
      x.shape().rank() == 4 && kernel > 0 && stride > 0 && padding >= 0 && 2 * padding <= kernel &&
          x.shape()[1] + 2 * padding >= kernel && x.shape()[2] + 2 * padding >= kernel,
      "max_pool2d: x ", x.shape(), ", kernel ", kernel, ", stride ", stride, ", padding ", padding);
  const Pool2dShape shape{.batch = x.shape()[0],
                          .height = x.shape()[1],
                          .width = x.shape()[2],
                          .channels = x.shape()[3],
                          .kernel = kernel,
                          .stride = stride,
                          .padding = padding};
  require(shape.height * shape.width <= std::numeric_limits<int32_t>::max(),
          "max_pool2d: the image has more pixels than its index type can count");
  const Shape result{shape.batch, shape.out_height(), shape.out_width(), shape.channels};
  auto op = std::make_unique<MaxPoolOp>();
  op->shape = shape;
  op->winner = context.activation(result, DType::kI32);
  Tensor y = context.activation(result, x.dtype());
  const Work work = touching(x.value(), y, op->winner);
  on_device(context.stream, work, x.dtype(), [&]<class T>(auto device) {
    kernels::max_pool2d_forward(device, shape, x.data<T>(), y.data<T>(),
                                op->winner.template data<int32_t>());
  });
  return context.record(std::move(y), std::move(op), {x});
}

Variable global_average_pool(Context& context, const Variable& x) {
  require(x.shape().rank() == 4, "global_average_pool: x ", x.shape());
  const int64_t batch = x.shape()[0], channels = x.shape()[3];
  auto op = std::make_unique<AveragePoolOp>();
  op->pixels = x.shape()[1] * x.shape()[2];
  Tensor y = context.activation({batch, channels}, x.dtype());
  on_device(context.stream, touching(x.value(), y), x.dtype(), [&]<class T>(auto device) {
    kernels::average_pixels_forward(device, x.data<T>(), y.data<T>(), batch, op->pixels, channels);
  });
  return context.record(std::move(y), std::move(op), {x});
}

}  // namespace tandem

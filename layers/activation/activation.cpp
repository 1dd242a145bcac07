#include "layers/activation/activation.h"

#include "src/kernels/activation_functions.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

template <class T>
void swiglu_forward(Cpu, const T* x, T* y, int64_t rows, int64_t width) {
  using W = Wide<T>;
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = x + 2 * r * width;
    const T* up = gate + width;
    T* out = y + r * width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      out[j] = T(Silu::value(W(gate[j])) * W(up[j]));
    }
  }
}

template <class T>
void swiglu_backward(Cpu, const T* dy, const T* x, T* dx, Wide<T> beta, int64_t rows,
                     int64_t width) {
  using W = Wide<T>;
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
  for (int64_t r = 0; r < rows; ++r) {
    const T* d = dy + r * width;
    const T* gate = x + 2 * r * width;
    const T* up = gate + width;
    T* dgate = dx + 2 * r * width;
    T* dup = dgate + width;
    for (int64_t j = 0; beta == W(0) && j < 2 * width; ++j) {
      dgate[j] = T(0);
    }
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      dgate[j] = T(W(dgate[j]) + W(d[j]) * W(up[j]) * Silu::slope(W(gate[j])));
      dup[j] = T(W(dup[j]) + W(d[j]) * Silu::value(W(gate[j])));
    }
  }
}

}  // namespace kernels

namespace {

template <class Function>
struct ActivationOp final : Op {
  Tensor saved;  // x or y

  std::string_view name() const override { return Function::kName; }
  void backward(Context& context, Tensor& dy) override {
    // If no one else reads dy, its memory becomes dx.
    const bool in_place = dy.unique() && !input(0).slot()->grad;
    const GradTarget dx = in_place ? GradTarget{dy, 0} : input(0).target(context);
    on_device(context.stream, touching(dy, saved, dx), dy.dtype(), [&]<class T>(auto device) {
      kernels::activation_backward<Function>(device, dy.elements(), dy.data<T>(), saved.data<T>(),
                                             dx.into.data<T>(), Wide<T>(dx.beta));
    });
    if (in_place) {
      input(0).add(context, dy);
    }
  }
};

template <class Function>
Variable activate(Context& context, const Variable& x) {
  Tensor y = context.activation(x.shape(), x.dtype());
  on_device(context.stream, touching(x.value(), y), x.dtype(), [&]<class T>(auto device) {
    kernels::activation_forward<Function>(device, x.elements(), x.data<T>(), y.data<T>());
  });
  auto op = std::make_unique<ActivationOp<Function>>();
  op->saved = Function::kSavesResult ? y : x.value();
  return context.record(std::move(y), std::move(op), {x});
}

struct SwigluOp final : Op {
  Tensor x;  // [rows, 2 * width]

  std::string_view name() const override { return "swiglu"; }
  void backward(Context& context, Tensor& dy) override {
    const int64_t width = x.shape()[-1] / 2, rows = width ? dy.elements() / width : 0;
    const GradTarget dx = input(0).target(context);
    on_device(context.stream, touching(dy, x, dx), dy.dtype(), [&]<class T>(auto device) {
      kernels::swiglu_backward(device, dy.data<T>(), x.data<T>(), dx.into.data<T>(),
                               Wide<T>(dx.beta), rows, width);
    });
  }
};

}  // namespace

Variable relu(Context& context, const Variable& x) { return activate<kernels::Relu>(context, x); }

Variable gelu(Context& context, const Variable& x) { return activate<kernels::Gelu>(context, x); }

Variable silu(Context& context, const Variable& x) { return activate<kernels::Silu>(context, x); }

Variable swiglu(Context& context, const Variable& x) {
  require(x.shape().rank() > 0 && x.shape()[-1] % 2 == 0, "swiglu: the last axis of ", x.shape(),
          " has no two halves");
  std::vector<int64_t> sizes(x.shape().sizes().begin(), x.shape().sizes().end());
  sizes.back() /= 2;
  const int64_t width = sizes.back();
  Tensor y = context.activation(Shape(sizes), x.dtype());
  on_device(context.stream, touching(x.value(), y), x.dtype(), [&]<class T>(auto device) {
    kernels::swiglu_forward(device, x.data<T>(), y.data<T>(), width ? y.elements() / width : 0,
                            width);
  });
  auto op = std::make_unique<SwigluOp>();
  op->x = x.value();
  return context.record(std::move(y), std::move(op), {x});
}

}  // namespace tandem

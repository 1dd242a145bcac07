#include "layers/activation.h"

#include "src/core/map.h"

namespace tandem {

namespace kernels {

template <class T>
void swiglu_forward(Cpu, const T* x, T* y, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = x + 2 * r * width;
    const T* up = gate + width;
    T* out = y + r * width;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      out[j] = math::silu(gate[j]) * up[j];
    }
  }
}

template <class T>
void swiglu_backward(Cpu, const T* dy, const T* x, T* dx, T beta, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
  for (int64_t r = 0; r < rows; ++r) {
    const T* d = dy + r * width;
    const T* gate = x + 2 * r * width;
    const T* up = gate + width;
    T* dgate = dx + 2 * r * width;
    T* dup = dgate + width;
    for (int64_t j = 0; beta == T(0) && j < 2 * width; ++j) {
      dgate[j] = T(0);
    }
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      dgate[j] += d[j] * up[j] * math::silu_slope(gate[j]);
      dup[j] += d[j] * math::silu(gate[j]);
    }
  }
}

template void swiglu_forward<float>(Cpu, const float*, float*, int64_t, int64_t);
template void swiglu_forward<double>(Cpu, const double*, double*, int64_t, int64_t);
template void swiglu_backward<float>(Cpu, const float*, const float*, float*, float, int64_t,
                                     int64_t);
template void swiglu_backward<double>(Cpu, const double*, const double*, double*, double, int64_t,
                                      int64_t);

}  // namespace kernels

namespace {

// A function and its slope. The slope takes what forward saved: x, or y where that is enough.
struct Relu {
  static constexpr std::string_view kName = "relu";
  static constexpr bool kSavesResult = true;  // the next layer keeps y anyway
  template <class T>
  TANDEM_HOST_DEVICE static T value(T x) {
    return x < T(0) ? T(0) : x;  // keeps NaN
  }
  template <class T>
  TANDEM_HOST_DEVICE static T slope(T y) {
    return y > T(0) ? T(1) : T(0);
  }
};

struct Gelu {
  static constexpr std::string_view kName = "gelu";
  static constexpr bool kSavesResult = false;
  template <class T>
  TANDEM_HOST_DEVICE static T value(T x) {
    return math::gelu(x);
  }
  template <class T>
  TANDEM_HOST_DEVICE static T slope(T x) {
    return math::gelu_slope(x);
  }
};

struct Silu {
  static constexpr std::string_view kName = "silu";
  static constexpr bool kSavesResult = false;
  template <class T>
  TANDEM_HOST_DEVICE static T value(T x) {
    return math::silu(x);
  }
  template <class T>
  TANDEM_HOST_DEVICE static T slope(T x) {
    return math::silu_slope(x);
  }
};

template <class Function>
struct ActivationOp final : Op {
  Tensor saved;  // x or y

  std::string_view name() const override { return Function::kName; }
  void backward(Context& context, Tensor& dy) override {
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      const T* point = saved.data<T>();
      T* d = dy.data<T>();
      if (dy.unique() && !input(0).slot()->grad) {
        // Nobody else reads dy: it becomes dx without more memory.
        map(device, dy.elements(), [=](int64_t i) { d[i] *= Function::slope(point[i]); });
        input(0).add(context, dy);
        return;
      }
      const GradTarget dx = input(0).target(context);
      T* to = dx.into.data<T>();
      if (dx.beta == 0) {
        map(device, dy.elements(), [=](int64_t i) { to[i] = d[i] * Function::slope(point[i]); });
      } else {
        map(device, dy.elements(), [=](int64_t i) { to[i] += d[i] * Function::slope(point[i]); });
      }
    });
  }
};

template <class Function>
Variable activate(Context& context, const Variable& x) {
  Tensor y = context.activation(x.shape(), x.dtype());
  on_device_and_float(context.stream, x.dtype(), [&]<class T>(auto device) {
    map(device, x.elements(),
        [from = x.data<T>(), to = y.data<T>()](int64_t i) { to[i] = Function::value(from[i]); });
  });
  auto op = std::make_unique<ActivationOp<Function>>();
  op->saved = Function::kSavesResult ? y : x.value();
  return context.record(std::move(y), std::move(op), {x});
}

struct SwigluOp final : Op {
  Tensor x;  // [rows, 2 * width]

  std::string_view name() const override { return "swiglu"; }
  void backward(Context& context, Tensor& dy) override {
    const int64_t width = x.shape()[-1] / 2, rows = dy.elements() / width;
    const GradTarget dx = input(0).target(context);
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      kernels::swiglu_backward(device, dy.data<T>(), x.data<T>(), dx.into.data<T>(), T(dx.beta),
                               rows, width);
    });
  }
};

}  // namespace

Variable relu(Context& context, const Variable& x) { return activate<Relu>(context, x); }

Variable gelu(Context& context, const Variable& x) { return activate<Gelu>(context, x); }

Variable silu(Context& context, const Variable& x) { return activate<Silu>(context, x); }

Variable swiglu(Context& context, const Variable& x) {
  require(x.shape().rank() > 0 && x.shape()[-1] % 2 == 0,
          [&] { return str("swiglu: the last axis of ", x.shape(), " has no two halves"); });
  std::vector<int64_t> sizes(x.shape().sizes().begin(), x.shape().sizes().end());
  sizes.back() /= 2;
  const int64_t width = sizes.back();
  Tensor y = context.activation(Shape(sizes), x.dtype());
  on_device_and_float(context.stream, x.dtype(), [&]<class T>(auto device) {
    kernels::swiglu_forward(device, x.data<T>(), y.data<T>(), width ? y.elements() / width : 0,
                            width);
  });
  auto op = std::make_unique<SwigluOp>();
  op->x = x.value();
  return context.record(std::move(y), std::move(op), {x});
}

}  // namespace tandem

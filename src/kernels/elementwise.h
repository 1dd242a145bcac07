// Copies, sums and activation functions of flat arrays, on either device D.
#pragma once

#include <type_traits>

#include "src/core/host_device.h"
#include "src/device/dispatch.h"
#include "src/kernels/activation_functions.h"

namespace tandem::kernels {

// Functors for transform().
template <class W>
struct Constant {
  W value;
  TANDEM_HOST_DEVICE W operator()() const { return value; }
};

struct Same {
  template <class W>
  TANDEM_HOST_DEVICE W operator()(W x) const {
    return x;
  }
};

struct Times {
  float factor;
  TANDEM_HOST_DEVICE float operator()(float x) const { return factor * x; }
};

struct Plus {
  template <class W>
  TANDEM_HOST_DEVICE W operator()(W x, W y) const {
    return x + y;
  }
};

// transform() on either device, with the functors and types at the end of this file.
template <class To, class F, class... From>
void elementwise(Cpu, int64_t n, To* to, F f, const From*... from);
template <class To, class F, class... From>
void elementwise(Cuda, int64_t n, To* to, F f, const From*... from);

// to[i] = value
template <class D, class T>
void fill(D device, int64_t n, T* to, Wide<T> value) {
  elementwise(device, n, to, Constant<Wide<T>>{value});
}

// y = a + b; also for i64. y may be the same array as a or b.
template <class D, class T>
void add(D device, int64_t n, const T* a, const T* b, T* y) {
  elementwise(device, n, y, Plus{}, a, b);
}

// to[i] = from[i], rounded to nearest. One type is f32, the other f32, bf16 or fp16.
template <class D, class From, class To>
void convert(D device, int64_t n, const From* from, To* to) {
  elementwise(device, n, to, Same{}, from);
}

// to[i] = factor * from[i], rounded once. From: f32 or bf16.
template <class D, class From>
void scale(D device, int64_t n, float factor, const From* from, float* to) {
  elementwise(device, n, to, Times{factor}, from);
}

struct GpuSigmoid;  // sigmoid.cuh
template <class D>
using Sigmoid = std::conditional_t<std::is_same_v<D, Cpu>, math::PortableSigmoid, GpuSigmoid>;

// y = Function::value(x). Function is Relu, Gelu or Silu from activation_functions.h.
template <class Function, class D, class T>
void activation_forward(D device, int64_t n, const T* x, T* y) {
  elementwise(device, n, y, Value<Function, Sigmoid<D>>{}, x);
}

// dx = beta * dx + dy * Function::slope(saved). dx and dy may be the same array.
template <class Function, class D, class T>
void activation_backward(D device, int64_t n, const T* dy, const T* saved, T* dx, Wide<T> beta) {
  if (beta == 0) {
    elementwise(device, n, dx, Gradient<Function, Sigmoid<D>>{}, dy, saved);
  } else {
    elementwise(device, n, dx, AddedGradient<Function, Sigmoid<D>, Wide<T>>{beta},
                static_cast<const T*>(dx), dy, saved);
  }
}

// Instances: of one type, and of several.
#define TANDEM_ACTIVATION(D, F, T)                                                           \
  template void elementwise(D, int64_t, T*, Value<F, Sigmoid<D>>, const T*);                 \
  template void elementwise(D, int64_t, T*, Gradient<F, Sigmoid<D>>, const T*, const T*);    \
  template void elementwise(D, int64_t, T*, AddedGradient<F, Sigmoid<D>, Wide<T>>, const T*, \
                            const T*, const T*);
#define TANDEM_ELEMENTWISE(D, T)                                       \
  template void elementwise(D, int64_t, T*, Constant<Wide<T>>);        \
  template void elementwise(D, int64_t, T*, Plus, const T*, const T*); \
  TANDEM_ACTIVATION(D, Relu, T)                                        \
  TANDEM_ACTIVATION(D, Gelu, T)                                        \
  TANDEM_ACTIVATION(D, Silu, T)
#define TANDEM_ELEMENTWISE_MIXED(D)                                                      \
  template void elementwise(D, int64_t, int64_t*, Plus, const int64_t*, const int64_t*); \
  template void elementwise(D, int64_t, float*, Same, const float*);                     \
  template void elementwise(D, int64_t, Bf16*, Same, const float*);                      \
  template void elementwise(D, int64_t, Fp16*, Same, const float*);                      \
  template void elementwise(D, int64_t, float*, Same, const Bf16*);                      \
  template void elementwise(D, int64_t, float*, Same, const Fp16*);                      \
  template void elementwise(D, int64_t, float*, Times, const float*);                    \
  template void elementwise(D, int64_t, float*, Times, const Bf16*);

}  // namespace tandem::kernels

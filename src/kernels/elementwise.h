// Copies, sums and activation functions of flat arrays.
#pragma once

#include "src/core/host_device.h"
#include "src/device/dispatch.h"

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

// to[i] = value
template <class T>
void fill(Cpu, int64_t n, T* to, Wide<T> value);
template <class T>
void fill(Cuda, int64_t n, T* to, Wide<T> value);

// y = a + b; also for i64. y may be the same array as a or b.
template <class T>
void add(Cpu, int64_t n, const T* a, const T* b, T* y);
template <class T>
void add(Cuda, int64_t n, const T* a, const T* b, T* y);

// to[i] = from[i], rounded to nearest. One type is f32, the other f32, bf16 or fp16.
template <class From, class To>
void convert(Cpu, int64_t n, const From* from, To* to);
template <class From, class To>
void convert(Cuda, int64_t n, const From* from, To* to);

// to[i] = factor * from[i], rounded once. From: f32 or bf16.
template <class From>
void scale(Cpu, int64_t n, float factor, const From* from, float* to);
template <class From>
void scale(Cuda, int64_t n, float factor, const From* from, float* to);

// y = Function::value(x). Function is Relu, Gelu or Silu from activation_functions.h.
template <class Function, class T>
void activation_forward(Cpu, int64_t n, const T* x, T* y);
template <class Function, class T>
void activation_forward(Cuda, int64_t n, const T* x, T* y);

// dx = beta * dx + dy * Function::slope(saved). dx and dy may be the same array.
template <class Function, class T>
void activation_backward(Cpu, int64_t n, const T* dy, const T* saved, T* dx, Wide<T> beta);
template <class Function, class T>
void activation_backward(Cuda, int64_t n, const T* dy, const T* saved, T* dx, Wide<T> beta);

}  // namespace tandem::kernels

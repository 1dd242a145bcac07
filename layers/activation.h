// Nonlinear functions, element by element. The formulas are the functors below, written once for
// all devices.
#pragma once

#include "layers/module.h"
#include "src/core/math.h"

namespace tandem {

// max(x, 0)
Variable relu(Context& context, const Variable& x);

// GELU in its tanh form, as in GPT-2 (Hendrycks and Gimpel 2016, arXiv:1606.08415):
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
Variable gelu(Context& context, const Variable& x);

// x sigmoid(x)
Variable silu(Context& context, const Variable& x);

// silu(gate) * up (Shazeer 2020, arXiv:2002.05202). x [..., 2F]: gate in the first half of the last
// axis, up in the second; returns [..., F].
Variable swiglu(Context& context, const Variable& x);

namespace kernels {

// x [rows, 2 * width], y [rows, width].
template <class T>
void swiglu_forward(Cpu, const T* x, T* y, int64_t rows, int64_t width);

// dx = beta * dx + the gradient by x.
template <class T>
void swiglu_backward(Cpu, const T* dy, const T* x, T* dx, T beta, int64_t rows, int64_t width);

}  // namespace kernels

namespace math {

// GELU(x) = x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x^3), because
// 0.5 (1 + tanh(u)) = sigmoid(2u).
template <class T>
TANDEM_HOST_DEVICE inline T gelu_gate(T x) {
  return sigmoid(T(1.5957691216057308) * x * (T(1) + T(0.044715) * x * x));
}

template <class T>
TANDEM_HOST_DEVICE inline T gelu(T x) {
  return x * gelu_gate(x);
}

template <class T>
TANDEM_HOST_DEVICE inline T gelu_slope(T x) {
  const T gate = gelu_gate(x);
  return gate *
         (T(1) + x * (T(1) - gate) * T(1.5957691216057308) * (T(1) + T(3 * 0.044715) * x * x));
}

template <class T>
TANDEM_HOST_DEVICE inline T silu(T x) {
  return x * sigmoid(x);
}

template <class T>
TANDEM_HOST_DEVICE inline T silu_slope(T x) {
  const T gate = sigmoid(x);
  return gate * (T(1) + x * (T(1) - gate));
}

}  // namespace math
}  // namespace tandem

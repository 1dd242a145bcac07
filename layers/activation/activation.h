// Elementwise activation functions; the formulas are in src/kernels/activation_functions.h. On a
// GPU each is one pass over memory.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

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
void swiglu_forward(Cuda, const T* x, T* y, int64_t rows, int64_t width);

// dx = beta * dx + gradient with respect to x; beta is 0 or 1.
template <class T>
void swiglu_backward(Cuda, const T* dy, const T* x, T* dx, Wide<T> beta, int64_t rows,
                     int64_t width);

}  // namespace kernels
}  // namespace tandem

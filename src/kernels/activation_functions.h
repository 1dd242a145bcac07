// The activation functions and their derivatives, written once for all devices.
#pragma once

#include <string_view>

#include "src/core/host_device.h"
#include "src/core/math.h"

namespace tandem {

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

namespace kernels {

// A function and its derivative. `slope` takes the tensor that forward saved: x, or y if
// kSavesResult.
struct Relu {
  static constexpr std::string_view kName = "relu";
  static constexpr bool kSavesResult = true;  // saves memory: the next layer keeps y in any case
  template <class W>
  TANDEM_HOST_DEVICE static W value(W x) {
    return x < W(0) ? W(0) : x;  // passes NaN on
  }
  template <class W>
  TANDEM_HOST_DEVICE static W slope(W y) {
    return y > W(0) ? W(1) : W(0);
  }
};

struct Gelu {
  static constexpr std::string_view kName = "gelu";
  static constexpr bool kSavesResult = false;
  template <class W>
  TANDEM_HOST_DEVICE static W value(W x) {
    return math::gelu(x);
  }
  template <class W>
  TANDEM_HOST_DEVICE static W slope(W x) {
    return math::gelu_slope(x);
  }
};

struct Silu {
  static constexpr std::string_view kName = "silu";
  static constexpr bool kSavesResult = false;
  template <class W>
  TANDEM_HOST_DEVICE static W value(W x) {
    return math::silu(x);
  }
  template <class W>
  TANDEM_HOST_DEVICE static W slope(W x) {
    return math::silu_slope(x);
  }
};

// Functors for transform().
template <class Function>
struct Value {
  template <class W>
  TANDEM_HOST_DEVICE W operator()(W x) const {
    return Function::value(x);
  }
};

template <class Function>
struct Gradient {
  template <class W>
  TANDEM_HOST_DEVICE W operator()(W dy, W saved) const {
    return dy * Function::slope(saved);
  }
};

template <class Function, class W>
struct AddedGradient {
  W beta;
  TANDEM_HOST_DEVICE W operator()(W dx, W dy, W saved) const {
    return beta * dx + dy * Function::slope(saved);
  }
};

}  // namespace kernels
}  // namespace tandem

// The activation functions and their derivatives, written once for all devices.
#pragma once

#include <string_view>

#include "src/core/host_device.h"
#include "src/core/math.h"

namespace tandem {

namespace math {

// The logistic function, and its distance from 1.
template <class T>
struct GateValue {
  T open, closed;
};

// How a device computes a gate: this is the portable way; sigmoid.cuh has the GPU's.
struct PortableSigmoid {
  template <class T>
  TANDEM_HOST_DEVICE static GateValue<T> gate(T x) {
    const T open = sigmoid(x);
    return {open, T(1) - open};
  }
};

// GELU(x) = x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x^3), because
// 0.5 (1 + tanh(u)) = sigmoid(2u).
template <class Sigmoid, class T>
TANDEM_HOST_DEVICE inline GateValue<T> gelu_gate(T x) {
  return Sigmoid::gate(T(1.5957691216057308) * x * (T(1) + T(0.044715) * x * x));
}

}  // namespace math

namespace kernels {

// A function and its derivative. `slope` takes the tensor that forward saved: x, or y if
// kSavesResult.
struct Relu {
  static constexpr std::string_view kName = "relu";
  static constexpr bool kSavesResult = true;  // saves memory: the next layer keeps y in any case
  template <class Sigmoid = math::PortableSigmoid, class W>
  TANDEM_HOST_DEVICE static W value(W x) {
    return x < W(0) ? W(0) : x;  // passes NaN on
  }
  template <class Sigmoid = math::PortableSigmoid, class W>
  TANDEM_HOST_DEVICE static W slope(W y) {
    return y > W(0) ? W(1) : W(0);
  }
};

struct Gelu {
  static constexpr std::string_view kName = "gelu";
  static constexpr bool kSavesResult = false;
  template <class Sigmoid = math::PortableSigmoid, class W>
  TANDEM_HOST_DEVICE static W value(W x) {
    return x * math::gelu_gate<Sigmoid>(x).open;
  }
  template <class Sigmoid = math::PortableSigmoid, class W>
  TANDEM_HOST_DEVICE static W slope(W x) {
    const math::GateValue<W> gate = math::gelu_gate<Sigmoid>(x);
    return gate.open *
           (W(1) + x * gate.closed * W(1.5957691216057308) * (W(1) + W(3 * 0.044715) * x * x));
  }
};

struct Silu {
  static constexpr std::string_view kName = "silu";
  static constexpr bool kSavesResult = false;
  template <class Sigmoid = math::PortableSigmoid, class W>
  TANDEM_HOST_DEVICE static W value(W x) {
    return x * Sigmoid::gate(x).open;
  }
  template <class Sigmoid = math::PortableSigmoid, class W>
  TANDEM_HOST_DEVICE static W slope(W x) {
    const math::GateValue<W> gate = Sigmoid::gate(x);
    return gate.open * (W(1) + x * gate.closed);
  }
};

// Functors for transform().
template <class Function, class Sigmoid>
struct Value {
  template <class W>
  TANDEM_HOST_DEVICE W operator()(W x) const {
    return Function::template value<Sigmoid>(x);
  }
};

template <class Function, class Sigmoid>
struct Gradient {
  template <class W>
  TANDEM_HOST_DEVICE W operator()(W dy, W saved) const {
    return dy * Function::template slope<Sigmoid>(saved);
  }
};

template <class Function, class Sigmoid, class W>
struct AddedGradient {
  W beta;
  TANDEM_HOST_DEVICE W operator()(W dx, W dy, W saved) const {
    return beta * dx + dy * Function::template slope<Sigmoid>(saved);
  }
};

}  // namespace kernels
}  // namespace tandem

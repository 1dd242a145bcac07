// The functors that elementwise.cpp and elementwise.cu pass to transform().
#pragma once

#include "src/core/host_device.h"

namespace tandem::kernels {

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

struct Plus {
  template <class W>
  TANDEM_HOST_DEVICE W operator()(W x, W y) const {
    return x + y;
  }
};

}  // namespace tandem::kernels

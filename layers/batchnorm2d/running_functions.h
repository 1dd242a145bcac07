// The functor of update_running, for both devices.
#pragma once

#include "src/device/global.h"

namespace tandem::kernels {

struct RunningUpdate {
  float momentum, scale;
  Global<const int32_t> apply;

  TANDEM_HOST_DEVICE float operator()(float running, float sum) const {
    return apply.load(0) != 0 ? (1 - momentum) * running + scale * sum : running;
  }
};

}  // namespace tandem::kernels

// The update of a model's RunningStatistics, once a step.
#pragma once

#include "src/device/dispatch.h"
#include "src/device/global.h"

namespace tandem::kernels {

// running[i] = (1 - momentum) * running[i] + scale * sum[i] if *apply is not 0; then, in any case,
// sum[i] = 0. For i in [0, n). `apply` points to one number in device memory.
void update_running(Cpu, int64_t n, float* running, float* sum, float momentum, float scale,
                    const int32_t* apply);
void update_running(Cuda, int64_t n, float* running, float* sum, float momentum, float scale,
                    const int32_t* apply);

// The functor of update_running, for both devices.
struct RunningUpdate {
  float momentum, scale;
  Global<const int32_t> apply;

  TANDEM_HOST_DEVICE float operator()(float running, float sum) const {
    return apply.load(0) != 0 ? (1 - momentum) * running + scale * sum : running;
  }
};

}  // namespace tandem::kernels

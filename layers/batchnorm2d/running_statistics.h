// The update of what a model observes while training (RunningStatistics), once a step.
#pragma once

#include "src/device/dispatch.h"

namespace tandem::kernels {

// running[i] = (1 - momentum) * running[i] + scale * sum[i] where *apply is not 0, and sum[i] = 0
// in any case, for i in [0, n). apply: one number in the memory of the device.
void update_running(Cpu, int64_t n, float* running, float* sum, float momentum, float scale,
                    const int32_t* apply);
void update_running(Cuda, int64_t n, float* running, float* sum, float momentum, float scale,
                    const int32_t* apply);

}  // namespace tandem::kernels

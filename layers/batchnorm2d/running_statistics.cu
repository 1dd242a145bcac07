#include "layers/batchnorm2d/running_statistics.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

void update_running(Cuda device, int64_t n, float* running, float* sum, float momentum, float scale,
                    const int32_t* apply) {
  transform(device, n, running, RunningUpdate{momentum, scale, apply},
            static_cast<const float*>(running), static_cast<const float*>(sum));
  fill(device, n, sum, 0.0f);
}

}  // namespace tandem::kernels

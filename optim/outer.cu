#include "optim/outer.h"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    outer_step_kernel(OuterScalars scalars, int64_t n, Global<const float> d,
                      Global<const float> before, bool has_before, Global<float> anchor,
                      Global<float> momentum, Global<float> value) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) {
    return;
  }
  float new_anchor = anchor.load(i), new_momentum = momentum.load(i), new_value = 0;
  const float moved_since = has_before ? value.load(i) - before.load(i) : 0;
  outer_step_of(scalars, d.load(i), moved_since, new_anchor, new_momentum, new_value);
  anchor.store(i, new_anchor);
  momentum.store(i, new_momentum);
  value.store(i, new_value);
}

}  // namespace

void difference(Cuda device, int64_t n, const float* a, const float* b, float* to) {
  transform(device, n, to, Minus{}, a, b);
}

void mean(Cuda device, int64_t n, const float* sum, float count, float* to) {
  transform(device, n, to, Over{count}, sum);
}

void outer_step(Cuda device, const OuterScalars& scalars, int64_t n, const float* d,
                const float* before, float* anchor, float* momentum, float* value) {
  if (n > 0) {
    launch<outer_step_kernel>(device, blocks_for(n, kThreads), kThreads, 0, scalars, n, d, before,
                              before != nullptr, anchor, momentum, value);
  }
}

}  // namespace tandem::kernels

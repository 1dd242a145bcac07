#include "optim/step_control.h"
#include "src/core/global.h"
#include "src/core/launch.cuh"

namespace tandem::kernels {

namespace {

__global__ void decide_step_kernel(Global<StepState> state, Global<const double> squared_norm,
                                   StepOptions options) {
  StepState before = state.load(0);
  before.squared_norm = squared_norm.load(0);
  state.store(0, decided(before, options));
}

}  // namespace

void decide_step(Cuda device, StepState* state, const double* squared_norm,
                 const StepOptions& options) {
  launch<decide_step_kernel>(device, 1, 1, 0, state, squared_norm, options);
}

}  // namespace tandem::kernels

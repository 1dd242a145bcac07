#include "optim/step_control.h"
#include "src/core/global.h"
#include "src/core/launch.cuh"

namespace tandem::kernels {

namespace {

__global__ void decide_step_kernel(Global<StepState> state, StepOptions options) {
  state.store(0, decided(state.load(0), options));
}

}  // namespace

void decide_step(Cuda device, StepState* state, const StepOptions& options) {
  launch<decide_step_kernel>(device, 1, 1, 0, state, options);
}

}  // namespace tandem::kernels

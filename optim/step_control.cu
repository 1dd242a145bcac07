#include "optim/step_control.h"
#include "src/device/global.h"
#include "src/kernels/launch.cuh"

namespace tandem::kernels {

namespace {

__global__ void decide_step_kernel(Global<StepState> state, Global<const double> squared_norm,
                                   StepOptions options) {
  StepState before = state.load(0);
  before.squared_norm = squared_norm.load(0);
  state.store(0, decided(before, options));
}

__global__ void begin_step_kernel(Global<StepNumbers> numbers, Global<const StepState> state) {
  numbers.store(0, begun(numbers.load(0), state.load(0)));
}

__global__ void end_micro_step_kernel(Global<StepNumbers> numbers, int64_t samples,
                                      Global<const double> loss, Global<double> losses) {
  const StepNumbers before = numbers.load(0);
  losses.store(before.micro_step, loss.load(0));
  numbers.store(0, next_micro_step(before, samples));
}

}  // namespace

void begin_step(Cuda device, StepNumbers* numbers, const StepState* state) {
  launch<begin_step_kernel>(device, 1, 1, 0, numbers, state);
}

void end_micro_step(Cuda device, StepNumbers* numbers, int64_t samples, const double* loss,
                    double* losses) {
  launch<end_micro_step_kernel>(device, 1, 1, 0, numbers, samples, loss, losses);
}

void decide_step(Cuda device, StepState* state, const double* squared_norm,
                 const StepOptions& options) {
  launch<decide_step_kernel>(device, 1, 1, 0, state, squared_norm, options);
}

}  // namespace tandem::kernels

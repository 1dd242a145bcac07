#include "src/device/global.h"
#include "src/device/ptx.cuh"
#include "src/kernels/launch.cuh"
#include "src/trace/stamp.h"

namespace tandem {

namespace {

__global__ void stamp_kernel(Global<int64_t> to) { to.store(0, ptx::global_timer()); }

}  // namespace

void stamp(Cuda device, int64_t* to) { launch<stamp_kernel>(device, 1, 1, 0, to); }

}  // namespace tandem

// The speed of the CPU's matrix product, which is the reference for the `mfu` metric.
#pragma once

namespace tandem {

// FLOP/s of the f32 matrix product of 1024 x 1024 operands on all threads of this process: the best
// of a few tries of about 10 ms each. When all ranks call it at the same time, it measures what one
// rank gets of the busy machine.
double measure_gemm_rate();

}  // namespace tandem

// The CPU's matrix product: its speed, which is the reference for the `mfu` metric, and the memory
// that OpenBLAS takes for it.
#pragma once

namespace tandem {

// FLOP/s of the f32 matrix product of 1024 x 1024 operands on all threads of this process: the best
// of a few tries of about 10 ms each. When all ranks call it at the same time, it measures what one
// rank gets of the busy machine.
double measure_gemm_rate();

// Makes OpenBLAS allocate its work buffers now. It would do so in its first large product, and
// retry for ever if the system refused the memory. So this function first asks for as much itself,
// and throws Error(kOutOfMemory) if it is refused. Call it after use_cpu_share(), before the model
// is allocated.
void claim_gemm_buffers();

}  // namespace tandem

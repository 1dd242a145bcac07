// The matrix product's speed, the reference for the `mfu` metric on a CPU, and its hidden memory.
#pragma once

namespace tandem {

// FLOP/s of this process's f32 matrix product on 1024 x 1024 operands with all its threads: the
// best of a few tries of some 10 ms each. Called on all ranks at the same time it measures the
// share of a rank in a busy machine.
double measure_gemm_rate();

// OpenBLAS takes its work buffers from the system in its first large product, and tries for ever
// when it gets none. So: asks for as much first, throwing Error(kOutOfMemory) where it is refused,
// and makes it take them. Call it before the model is allocated, after use_cpu_share().
void claim_gemm_buffers();

}  // namespace tandem

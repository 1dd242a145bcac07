// The reference for the `mfu` metric on a CPU.
#pragma once

namespace tandem {

// FLOP/s of this process's f32 matrix product on 1024 x 1024 operands with all its threads: the
// best of a few tries of some 10 ms each. Called on all ranks at the same time it measures the
// share of a rank in a busy machine.
double measure_gemm_rate();

}  // namespace tandem

#include "optim/flat_optimizer.cuh"
#include "optim/lion.h"

namespace tandem::kernels {

template void update_shards<LionRule>(Cuda, const LionOptions&, const StepInputs&, LionScalars*,
                                      DType, const ArrayList<ShardArrays>&);

}  // namespace tandem::kernels

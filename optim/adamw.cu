#include "optim/adamw.h"
#include "optim/flat_optimizer.cuh"

namespace tandem::kernels {

template void update_shards<AdamWRule>(Cuda, const AdamWOptions&, const StepInputs&, AdamWScalars*,
                                       DType, const ArrayList<ShardArrays>&);

}  // namespace tandem::kernels

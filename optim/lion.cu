#include "optim/flat_optimizer.cuh"
#include "optim/lion.h"

namespace tandem::kernels {

template void prepare_update<LionRule>(Cuda, const LionOptions&, const StepInputs&, LionScalars*);
template void update_shards<LionRule>(Cuda, const LionScalars*, DType,
                                      const ArrayList<ShardArrays>&);
template void update_shards<LionRule>(Cuda, const LionScalars*, DType,
                                      std::span<const ShardArrays, 1>);

}  // namespace tandem::kernels
